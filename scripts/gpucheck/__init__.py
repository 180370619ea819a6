"""scripts/gpu_check: what one visit to a GPU host should bring home, in parts, each within its time limit."""
