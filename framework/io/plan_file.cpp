#include "framework/io/plan_file.hpp"

#include <optional>
#include <stdexcept>

#include "framework/io/file.hpp"
#include "framework/io/toml_file.hpp"
#include "framework/plan/plans.hpp"

namespace tegula::io {

namespace {

class PlanFile : TomlFile {
 public:
  PlanFile(const std::string& text, const std::string& name, Graph& graph)
      : TomlFile(text, name), graph_(graph) {}

  Plan read() {
    // The mesh before what lies along it.
    if (const toml::node* mesh = all().get("mesh")) at(*mesh, [&] { plan_.mesh(mesh_of(*mesh)); });
    if (const toml::node* tiles = all().get("tile"))
      each(*tiles,
           [&](const std::string& key, const toml::node& value) { plan_.tile(axis(key), integer(value)); });
    for (const auto& [key, entry] : all()) {
      const std::string what(key.str());
      const toml::node& node = entry;
      at(node, [&] {
        if (what == "group")
          each(node, [&](const std::string& name, const toml::node& value) {
            plan_.group(axis(name), static_cast<int>(integer(value)));
          });
        else if (const auto which = placed(what))
          each(node, [&](const std::string& name, const toml::node& value) {
            plan_.shard(axis(name), strings(value, "mesh dimensions"), *which);
          });
        else if (what == "within")
          each(node, [&](const std::string& scope, const toml::node& value) { within(scope, value); });
        else if (what == "stages")
          stages(node);
        else if (what == "micro-batches")
          micro_batches(node);
        else if (what == "proportions")
          each(node, [&](const std::string& name, const toml::node& value) {
            plan_.proportions(name, integers(value));
          });
        else if (what == "recompute")
          plan_.recompute(strings(node, "scopes"));
        else if (what == "fuse")
          plan_.fuse(value<bool>(node, "true or false"));
        else if (what != "mesh" && what != "tile" && what != "follow" && what != "schedule")
          throw std::runtime_error(fmt::format(
              "unknown key '{}'; known are mesh, proportions, tile, group, shard, shard-parameters, "
              "shard-activations, within, follow, stages, micro-batches, schedule, recompute and fuse",
              what));
        if (what == "schedule" && !all().contains("micro-batches"))
          throw std::runtime_error("a schedule orders micro-batches: add micro-batches = \"batch\"");
      });
    }
    if (const toml::node* followed = all().get("follow"))  // when it is known how these are cut and sharded
      at(*followed, [&] {
        for (const std::string& name : strings(*followed, "axes")) plans::follow(plan_, graph_, axis(name));
      });
    return plan_;
  }

 private:
  Axis axis(const std::string& name) const {
    if (auto found = graph_.find_axis(name)) return *found;
    std::string known;
    for (const Axis& axis : graph_.axes()) known += (known.empty() ? "" : ", ") + axis.name();
    throw std::runtime_error(fmt::format("there is no axis '{}'; the axes are {}", name, known));
  }

  std::vector<std::pair<std::string, int>> mesh_of(const toml::node& node) const {
    std::vector<std::pair<std::string, int>> mesh;
    each(node, [&](const std::string& key, const toml::node& value) {
      mesh.emplace_back(key, static_cast<int>(integer(value)));
    });
    return mesh;
  }

  static std::optional<Placed> placed(const std::string& key) {
    if (key == "shard") return Placed::all;
    if (key == "shard-parameters") return Placed::parameters;
    if (key == "shard-activations") return Placed::activations;
    return {};
  }

  // Of a scope: {shard-parameters = {hidden = "row"}}
  void within(const std::string& scope, const toml::node& node) {
    each(node, [&](const std::string& key, const toml::node& axes) {
      const auto which = placed(key);
      if (!which)
        throw std::runtime_error(
            fmt::format("unknown key '{}'; known are shard, shard-parameters and shard-activations", key));
      each(axes, [&](const std::string& name, const toml::node& value) {
        plan_.shard_within(scope, axis(name), strings(value, "mesh dimensions"), *which);
      });
    });
  }

  // {along = "stage", even = 4} or {along = "stage", layers = {block0 = 0, block1 = 1}}
  void stages(const toml::node& node) {
    std::string along = "stage";
    std::vector<std::pair<std::string, int>> layers;
    each(node, [&](const std::string& key, const toml::node& value) {
      if (key == "along")
        along = PlanFile::value<std::string>(value, "a mesh dimension");
      else if (key == "even")
        layers = plans::even_stages(graph_, static_cast<int>(integer(value)));
      else if (key == "layers")
        each(value, [&](const std::string& layer, const toml::node& stage) {
          layers.emplace_back(layer, static_cast<int>(integer(stage)));
        });
      else
        throw std::runtime_error(fmt::format("unknown key '{}'; known are along, even and layers", key));
    });
    if (layers.empty()) throw std::runtime_error("stages need layers = {...} or even = N");
    plan_.stages(along, layers);
  }

  void micro_batches(const toml::node& node) {
    Schedule schedule = schedules::sequential();
    if (const toml::node* name = all().get("schedule"))
      at(*name, [&] { schedule = schedules::find(value<std::string>(*name, "the name of a schedule")); });
    plan_.micro_batches(axis(value<std::string>(node, "the name of an axis")), std::move(schedule));
  }

  Graph& graph_;
  Plan plan_;
};

}  // namespace

Plan parse_plan(const std::string& text, const std::string& name, Graph& graph) {
  return PlanFile(text, name, graph).read();
}

Plan read_plan(const std::filesystem::path& file, Graph& graph) {
  return parse_plan(read_text(file), file.string(), graph);
}

}  // namespace tegula::io
