"""What every package uses: errors, text from strangers, whole files, locks, processes."""
