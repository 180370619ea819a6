"""Prints the time of a loop in us. Arguments: loops of one repetition."""
import sys, time
count = int(sys.argv[1])
for _ in range(5):
    begun = time.perf_counter()
    total = 0
    for i in range(count):
        total += i * i
    print(f"Latency: {1e6 * (time.perf_counter() - begun):.3f} us")
