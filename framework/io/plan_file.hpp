// Plans as TOML files, so that a program can be placed without being changed. See docs/plans.md for the keys.
#pragma once

#include <filesystem>
#include <string>

#include "framework/plan/plan.hpp"

namespace tegula::io {

// Throws std::runtime_error, starting with "name:line:", for what is not TOML, unknown keys, values of the wrong kind, and axes,
// mesh dimensions and schedules that there are not.
Plan parse_plan(const std::string& text, const std::string& name, Graph& graph);
Plan read_plan(const std::filesystem::path& file, Graph& graph);

}  // namespace tegula::io
