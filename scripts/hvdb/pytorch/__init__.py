"""Parts of hvdb.torch_profile. None imports PyTorch before record() is called; `torch` is handed to them."""
