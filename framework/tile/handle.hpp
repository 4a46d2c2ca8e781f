// Whether a handle will have a value once the tasks submitted so far have run. StarPU ends the process when a task
// reads data that nothing writes; with this mark the mistake is an exception where it is made.
#pragma once

#include <starpu.h>

namespace tegula::detail {

inline bool has_value(starpu_data_handle_t handle) { return starpu_data_get_user_data(handle) != nullptr; }
inline void set_has_value(starpu_data_handle_t handle, bool value) {
  starpu_data_set_user_data(handle, value ? handle : nullptr);
}

}  // namespace tegula::detail
