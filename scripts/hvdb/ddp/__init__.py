"""The parts of hvdb.torch_efficiency: steps of a training, what the ranks tell each other, and the samples' file."""
