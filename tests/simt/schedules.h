#pragma once

#include "../sanitized.h"

namespace lockstep {

// Random schedules that a test runs in.
inline constexpr int kSchedules = kSanitized ? 5 : 20;

}  // namespace lockstep
