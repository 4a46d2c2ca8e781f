// All of Tegula's public API.
#pragma once

#include "framework/graph/ops.hpp"
#include "framework/io/checkpoint.hpp"
#include "framework/io/dataset.hpp"
#include "framework/io/file.hpp"
#include "framework/io/options.hpp"
#include "framework/io/progress.hpp"
#include "framework/io/safetensors.hpp"
#include "framework/plan/plans.hpp"
#include "framework/program/program.hpp"
#include "framework/runtime/runtime.hpp"
#include "framework/tile/submit.hpp"
#include "layers/layers.hpp"
#include "layers/schedule.hpp"
#include "layers/transformer.hpp"
