// Holds derivatives by autodiff against finite differences, and what a tiled program computes against one of whole
// tensors. Everything is f64.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "framework/graph/graph.hpp"

namespace tegula::test {

using Values = std::map<int, std::vector<double>>;  // contents of tensors, by id

// A tensor and the states to differentiate it by.
struct Subject {
  std::string name;
  Tensor y;
  std::vector<Tensor> x;
};

struct Conditions {
  Values contents;  // of states that are not to have their initial ones
  // Lengths of the chains in which tiles are added up; the last one is of all tiles, without a tree.
  std::vector<int> groups = {1, 2, 100};
};

// Checks, for the states of one `direction` after the other, moved together at random:
//  - the gradient of a scalar function of each y;
//  - where the ops offer it, the gradient of a scalar function of that gradient;
// and that outputs and gradients are the same when every axis that may be cut is cut into tiles of 2.
// Returns what whole tensors gave for the subjects.
Values check_derivatives(Graph& graph, const std::vector<Subject>& subjects,
                         const std::vector<std::vector<Tensor>>& directions,
                         const Conditions& conditions = {});

// Fails where values differ by more than `tolerance` of themselves and of their root mean square.
void check_close(const std::string& name, const std::vector<double>& values,
                 const std::vector<double>& expected, double tolerance);

}  // namespace tegula::test
