# Installation and the exported package: find_package(hvd_bench) gives hvd::engine.
