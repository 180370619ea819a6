// Built as two libraries: one has a symbol of Open MPI, the other none of MPI. Neither has what a module needs.
#ifdef HAS_MPI_INIT
extern "C" int MPI_Init_thread() { return 1; }
extern "C" int ompi_mpi_comm_world;
int ompi_mpi_comm_world = 0;
#else
extern "C" int not_mpi() { return 0; }
#endif
