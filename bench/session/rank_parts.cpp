#include "bench/session/rank_parts.h"

#include <exception>
#include <utility>

#include "bench/hardware/gpu_choice.h"
#include "bench/store/host_facts.h"
#include "bench/train/device_trainer.h"
#include "bench/train/host_trainer.h"
#include "engine/base/assert.h"
#include "engine/base/deadline.h"
#include "engine/base/hash.h"

namespace hvd::bench {

RankParts::RankParts(const Setup& setup, const EngineOptions& options, const comm::CommOptions& comm, GpuBackend* gpus,
                     std::shared_ptr<comm::Communicator> communicator, const RankEndings& endings)
    : setup_(setup),
      leave_(endings.stuck.leave),
      options_(options),
      comm_options_(comm),
      gpus_(gpus),
      setting_(setup.device == Device::kCuda ? gpu_setting(options, setup.gpu) : cpu_setting(options, comm)) {
  if (setup.device == Device::kCuda) {
    open_gpu(options, std::move(communicator), endings);
  } else {
    host_ = std::make_unique<Engine>(std::move(communicator), options);
  }
}

void RankParts::open_gpu(const EngineOptions& options, std::shared_ptr<comm::Communicator> communicator,
                         const RankEndings& endings) {
  HVD_ASSERT(gpus_ != nullptr);
  const comm::Topology& topology = communicator->topology();
  std::unique_ptr<comm::DeviceCommunicator> gpus;
  try {
    list_ = gpus_->list();
    runtime_ = gpus_->open(choose_gpu(*communicator, list_, affinity(), setup_.startup_deadline.from_now()));
    auto nccl = topology.size > 1 ? gpus_->load_nccl(*runtime_) : nullptr;
    gpus = comm::make_nccl(std::move(communicator), *runtime_, std::move(nccl), setup_.gpu.nccl,
                           setup_.startup_deadline.from_now());
  } catch (const std::exception& error) {
    if (communicator) communicator->control().abort(error.what());  // otherwise make_nccl() has told the peers
    if (endings.failing) endings.failing();
    throw;
  }
  DeviceOptions device = setup_.gpu.schedule;
  device.graph = device.graph && !setup_.profile;  // a profiled step waits after every operation
  device_ = std::make_unique<DeviceEngine>(std::move(gpus), options, device, endings.stuck);
  if (const std::string_view refusal = device_->graph_refusal(); !refusal.empty()) {
    notes_.emplace_back(refusal);
    device_->enqueue_every_step();  // phases are compared, so if the main phase cannot use graphs, no phase does
  }
  setting_.graph = device_->graphs();
}

GpuDescription RankParts::gpu(const std::string& engines, const std::string& nccl_log) {
  GpuDescription gpu = describe_rank(runtime_->device(), list_, engine().topology(), nccl_log);
  if (!engines.empty()) gpu["gpu.engines"] = hex64(Hasher().text(engines).value());
  return gpu;
}

GpuDescription RankParts::device(int threads) {
  GpuDescription device;
  if (on_gpu()) {
    device = gpu({});
  } else {
    const Processor cpu = processor();
    device = {
        {"processor", cpu.model}, {"processor.cores", std::to_string(cpu.cores)}, {"threads", std::to_string(threads)}};
  }
  if (setup_.replay) device["replay"] = setup_.replay_hash;
  return device;
}

std::vector<Knob> RankParts::knobs() {
  std::vector<Knob> knobs;
  if (!on_gpu()) {
    const comm::Topology& world = host_->topology();
    const ScheduleSetting defaults = cpu_setting({}, {});
    if (world.size == 1) return knobs;
    if (setting_.negotiated) {
      if (setting_.threshold_bytes == defaults.threshold_bytes) knobs.push_back(Knob::kThreshold);
      if (setting_.cycle_time == defaults.cycle_time) knobs.push_back(Knob::kCycle);
    } else if (!setup_.tuning.buckets_given) {
      knobs.push_back(Knob::kBuckets);
    }
    if (world.nodes > 1 && setting_.algorithm == defaults.algorithm) knobs.push_back(Knob::kAlgorithm);
    if (setting_.segment_bytes == defaults.segment_bytes) knobs.push_back(Knob::kSegment);
    return knobs;
  }
  if (setting_.graph) knobs.push_back(Knob::kGraph);
  if (device_->engine().size() == 1) return knobs;
  if (setting_.overlap) knobs.push_back(Knob::kOverlap);
  if (!setup_.tuning.buckets_given) knobs.push_back(Knob::kBuckets);
  if (setting_.max_ctas == 0) knobs.push_back(Knob::kCtas);
  if (device_->plane().registers_memory()) knobs.push_back(Knob::kRegistration);
  return knobs;
}

void RankParts::apply(const ScheduleSetting& setting) {
  EngineOptions engine = options_;
  GpuOptions gpu = setup_.gpu;
  comm::CommOptions comm = comm_options_;
  put(setting, engine, gpu, comm);
  if (!on_gpu()) {
    if (setting.bucket_bytes != setting_.bucket_bytes) host_->set_buckets(engine.buckets);
    if (setting.threshold_bytes != setting_.threshold_bytes || setting.cycle_time != setting_.cycle_time) {
      host_->set_negotiation(engine.negotiation.fusion, engine.cycle_time);
    }
    if (setting.algorithm != setting_.algorithm || setting.segment_bytes != setting_.segment_bytes) {
      host_->set_reduction(comm);
    }
    setting_ = setting;
    return;
  }
  device_->set_options(gpu.schedule);
  if (setting.bucket_bytes != setting_.bucket_bytes) device_->set_buckets(engine.buckets);
  if (setting.max_ctas != setting_.max_ctas || setting.register_memory != setting_.register_memory) {
    device_->reconnect(gpu.nccl);
  }
  setting_ = setting;
}

RankTrainer RankParts::make_trainer(int threads) {
  if (!on_gpu()) return {std::make_unique<HostTrainer>(setup_, *host_, threads, leave_), nullptr};
  auto trainer = std::make_unique<DeviceTrainer>(setup_, *device_, *runtime_, *gpus_, threads);
  TrainingGpu* const gpu = trainer.get();
  return {std::move(trainer), gpu};
}

}  // namespace hvd::bench
