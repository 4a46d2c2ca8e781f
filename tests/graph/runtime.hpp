// StarPU takes a while to start: the cases of a test binary share one Runtime.
#pragma once

#include "framework/runtime/runtime.hpp"

namespace tegula::test {

Runtime& runtime();

}  // namespace tegula::test
