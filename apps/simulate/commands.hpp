// The commands of tegula-simulate, and what they share.
#pragma once

#include <string>
#include <vector>

namespace tegula::apps {

// Each takes its own part of the command line and returns the exit code.
int simulate(int argc, char** argv);
int calibrate(int argc, char** argv);

// Runs a program and waits for it; what it prints goes to the file, if one is given. Returns what went wrong, or nothing.
std::string run_program(const std::vector<std::string>& command, const std::string& log = "");

}  // namespace tegula::apps
