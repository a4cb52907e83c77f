"""A spread whose nodes are the ranks of an MPI job: a site's own MPI carries the chunks, by RDMA where it has it.

    post       all calls of MPI, in one thread
    carry      streams between ranks, as any transport gives them
    rank       what `mpirun fairlead weights spread ... --transport mpi` does on every node
    control    the control side: a process of its own beside rank 0, which hears the others through it

Ranks need fairlead and mpi4py in the Python that mpirun or srun starts; nothing else of this package needs either.
"""
