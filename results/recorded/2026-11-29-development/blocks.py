"""Development blocks: conditions that the plan does not have."""
import json
import sys
import time
from pathlib import Path

sys.path[:0] = ['/work/main/scripts', '/work/main/tests/testbed']
from hvnet import network
from validation import __main__ as v

CASES = [(75.0, 0.0, 1.0, "resnet101"), (120.0, 1000.0, 0.6, "vgg16"), (40.0, 0.0, 1.6, "inception3"), (180.0, 500.0, 1.0, "resnet101")]
class Dev(v.Block):
    rate_mbit = property(lambda self: CASES[self.number][0])
    latency_us = property(lambda self: CASES[self.number][1])
    share = property(lambda self: CASES[self.number][2])
    profile = property(lambda self: CASES[self.number][3])
    is_odd = False
if __name__ == "__main__":
    bench = Path("/work/main/build/release/bin/hvd_bench")
    if "--inside" not in sys.argv:
        sys.exit(network.enter(["/usr/bin/python3", "-B", __file__, "--inside", *sys.argv[1:]]))
    scratch = network.prepare()
    out = Path("/tmp/quiet/dev"); out.mkdir(exist_ok=True)
    for n in map(int, sys.argv[2:]):
        here = out / f"dev-{n}-{int(time.time())}"; here.mkdir()
        began = time.time()
        cells = v.NetworkMeasurement(Dev(n), bench, scratch, here).run()
        (here / "cells.json").write_text(json.dumps(cells))
        for c in cells:
            p, m = c["predicted"], c["measured"]["step_seconds"]
            print(n, c["ranks"], c["options"][11:60].ljust(50), f"{1e3*p['low']:.1f} {1e3*p['middle']:.1f} {1e3*p['high']:.1f} measured {1e3*m:.1f} {'' if p['low']<=m<=p['high'] else 'OUT'} error {100*(p['middle']/m-1):+.1f}% width {100*(p['high']-p['low'])/p['middle']:.1f}%", flush=True)
        print(f"block {n}: {time.time()-began:.0f} s", flush=True)
