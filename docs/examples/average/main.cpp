// Averages a program's own buffers over all ranks:  mpirun -np 2 ./average
#include <array>
#include <cstdio>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/engine.h"

int main() {
  try {
    hvd::Engine engine(hvd::comm::mpi_available() ? hvd::comm::make_mpi() : hvd::comm::make_solo(), {});

    // The buffers to average. There may be any number of them, of any type and shape.
    const int rank = engine.rank();
    std::vector<float> weights(std::size_t{64} * 128, static_cast<float>(rank + 1));
    std::vector<double> biases(128, 10.0 * (rank + 1));

    // The engine matches the ranks' buffers by name, so each rank may submit in any order. The engine fuses small
    // buffers and works while this thread computes. Do not touch a buffer before wait() has returned.
    const std::array<std::int64_t, 2> matrix{64, 128};
    const std::array<std::int64_t, 1> vector{128};
    const hvd::Ticket first =
        engine.all_reduce_async("weights", weights.data(), matrix, hvd::DataType::kF32, hvd::ReduceOp::kAverage);
    const hvd::Ticket second =
        engine.all_reduce_async("biases", biases.data(), vector, hvd::DataType::kF64, hvd::ReduceOp::kAverage);
    engine.wait(first);
    engine.wait(second);

    if (rank == 0) {
      std::printf("%d ranks: mean of weights %g, of biases %g\n", engine.size(), static_cast<double>(weights.back()),
                  biases.back());
    }
    return 0;
  } catch (const hvd::Error& error) {  // names the rank, the tensor and what to do
    std::fprintf(stderr, "average: %s\n", error.what());
    return hvd::exit_code(error.code());
  }
}
