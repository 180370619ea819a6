#include "models/cudnn/run/cudnn_launch.h"

#include <utility>

#include "engine/base/error.h"

namespace hvd::models::cudnn {

Handle::Handle(std::shared_ptr<const Library> library) : library_(std::move(library)) {
  if (const cudnnStatus_t status = library_->call().create_handle(&handle_); status != CUDNN_STATUS_SUCCESS) {
    throw Error(Errc::kBackend, "cudnnCreate (" + library_->description() + "): " + library_->explain(status) +
                                    "; is the driver new enough for this cuDNN?");
  }
}

Handle::~Handle() { static_cast<void>(library_->call().destroy_handle(handle_)); }

void Handle::use(kernels::Stream stream) {
  if (stream == stream_) return;
  if (const cudnnStatus_t status = library_->call().set_stream(handle_, stream); status != CUDNN_STATUS_SUCCESS) {
    throw Error(Errc::kBackend, "cudnnSetStream: " + library_->explain(status));
  }
  stream_ = stream;
}

ExecutionPlan::ExecutionPlan(const Library& library, const Target& target, const Program& program, const Group& group,
                             const EngineChoice& choice)
    : graph_(library, program, group, target.handle()),
      engine_(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR),
      config_(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
      plan_(library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
  engine_.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_.get());
  engine_.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice.engine);
  target.aim_engine(engine_);
  engine_.finalize("engine");
  for (const Knob& knob : choice.knobs) {
    Descriptor made(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    const auto type = static_cast<cudnnBackendKnobType_t>(knob.type);
    made.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    made.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, knob.value);
    made.finalize("knob");
    knobs_.push_back(std::move(made));
  }
  config_.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine_);
  if (!knobs_.empty()) config_.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knobs_);
  config_.finalize("engine configuration");
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
  target.aim_plan(plan_);
  plan_.finalize("plan");
  workspace_bytes_ = static_cast<std::size_t>(plan_.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
}

namespace {

// The arguments with which a plan is executed: the unique ids and addresses of one group's values.
class VariantPack {
 public:
  VariantPack(const Library& library, const Addresses& addresses, const Group& group)
      : pack_(library, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    std::vector<std::int64_t> uids;
    std::vector<void*> pointers;
    for (const Binding& binding : bindings(group)) {
      uids.push_back(binding.uid);
      pointers.push_back(addresses.at(binding.value));
    }
    void* workspace = addresses.arenas().workspace.data();
    const auto count = static_cast<std::int64_t>(uids.size());
    pack_.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids);
    pack_.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
    pack_.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack_.finalize("variant pack");
  }

  [[nodiscard]] const Descriptor& get() const noexcept { return pack_; }

 private:
  Descriptor pack_;
};

}  // namespace

Launch cudnn_launch(Handle& handle, std::shared_ptr<const ExecutionPlan> plan, const Addresses& addresses,
                    const Group& group) {
  const auto pack = std::make_shared<const VariantPack>(handle.library(), addresses, group);
  return [&handle, plan = std::move(plan), pack, what = operations_text(group)](kernels::Stream stream) {
    handle.use(stream);
    const Library& library = handle.library();
    const cudnnStatus_t status = library.call().execute(handle.get(), plan->get().get(), pack->get().get());
    if (status != CUDNN_STATUS_SUCCESS) {
      throw Error(Errc::kBackend, "cudnnBackendExecute(" + what + "): " + library.explain(status));
    }
  };
}

}  // namespace hvd::models::cudnn
