// MPI's name for our dtypes and reductions. MPI knows neither bf16 nor f16: both travel as 16-bit words and are reduced
// by operations of our own, in f32, rounded to nearest even at every step.
#pragma once

#include <mpi.h>
#include <stddef.h>

#include "core/abi/base.h"

namespace mpi {

MPI_Datatype DatatypeOf(sy_dtype dtype);
MPI_Op OperationOf(sy_dtype dtype, int reduction);  // MPI is initialised; made at first use

}  // namespace mpi
