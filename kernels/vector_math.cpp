#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels::vector_math_internal {

extern const float kExpLowest = -105.0f;
extern const float kExpm1Lowest = -30.0f;
extern const float kExpHighest = 90.0f;
extern const float kTanhHighest = 10.0f;
extern const float kErfHighest = 4.0f;

}  // namespace lockstep::kernels::vector_math_internal
