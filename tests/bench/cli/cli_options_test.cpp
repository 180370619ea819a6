// Tests how the command line and the environment are read: every name that scripts rely on, and the errors for bad
// values.
#include <gtest/gtest.h>

#include <sstream>

#include "bench/cli/command_line.h"
#include "bench/world/values.h"
#include "engine/base/error.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::cli_options_test {
namespace {

CommandLine parse(const std::string& line, const Environment& environment = {}) {
  std::vector<std::string> argv{"hvd_bench"};
  std::istringstream words(line);
  for (std::string word; words >> word;) argv.push_back(word);
  return parse_command_line(argv, environment);
}

std::string error_of(const std::string& line, const Environment& environment = {},
                     Errc expected = Errc::kInvalidArgument) {
  const std::string error = test::error_of(expected, [&] { parse(line, environment); });
  EXPECT_EQ(error.find('\n'), std::string::npos) << "one line: " << error;
  return error;
}

TEST(CommandLine, DefaultsNeedNothing) {
  const CommandLine line = parse("");
  EXPECT_EQ(line.command, Command::kTrain);
  EXPECT_EQ(line.options.model, "resnet101");
  EXPECT_EQ(line.options.db_file, "hvd_bench.db");
  EXPECT_EQ(line.options.engine.schedule, Schedule::kStatic);
  EXPECT_EQ(line.options.comm, CommBackend::kAuto);
  EXPECT_FALSE(line.options.num_iters.has_value());
}

TEST(CommandLine, StartUpIsGivenAtLeastAStepsDeadline) {
  EXPECT_EQ(parse("--deadline-seconds 5").options.startup_deadline.timeout.count(), 300'000);
  EXPECT_EQ(parse("--deadline-seconds 900").options.startup_deadline.timeout.count(), 900'000);
  EXPECT_EQ(parse("--deadline-seconds 900 --startup-deadline-seconds 7").options.startup_deadline.timeout.count(),
            7000);
  EXPECT_EQ(parse("").options.startup_deadline.set_by, std::string("--startup-deadline-seconds"));
}

TEST(CommandLine, ValidateTakesItsOwnOptionsAndThoseThatSayWhatIsTrained) {
  const CommandLine plain = parse("validate --model vgg16 --ranks 4 --comm loopback", {{"HOROVOD_TIMELINE", "t.json"}});
  EXPECT_EQ(plain.command, Command::kTrain);
  ASSERT_TRUE(plain.options.validate.has_value());
  EXPECT_EQ(plain.options.validate->steps, 30);
  EXPECT_DOUBLE_EQ(plain.options.validate->threshold, 0.02);
  EXPECT_EQ(plain.options.model, "vgg16");
  EXPECT_EQ(plain.options.engine.schedule, Schedule::kNone);
  EXPECT_TRUE(plain.options.gpu.deterministic);
  EXPECT_TRUE(plain.options.engine.timeline_filename.empty());
  const CommandLine given = parse("--model vgg16 validate --steps 12 --threshold=5");
  EXPECT_EQ(given.options.validate->steps, 12);
  EXPECT_DOUBLE_EQ(given.options.validate->threshold, 0.05);
  EXPECT_FALSE(parse("train").options.validate.has_value());
}

TEST(CommandLine, ValidateRefusesWhatItCannotHeed) {
  for (const std::string option :
       {"--replay x", "--schedule static", "--num-iters 3", "--max-time 9", "--efficiency", "--no-check", "--quiet",
        "--tune-schedule", "--share-gpus", "--timeline-filename t", "--allreduce-dtype bf16"}) {
    const std::string name = option.substr(0, option.find(' '));
    EXPECT_EQ(error_of("validate " + option).rfind(name + ": not an option of 'hvd_bench validate'", 0), 0U) << option;
  }
  EXPECT_NE(error_of("validate --steps 9").find("from 10"), std::string::npos);
  EXPECT_NE(error_of("validate --threshold 0").find("--threshold: '0'"), std::string::npos);
  EXPECT_NE(error_of("--steps 12").find("there is no such option"), std::string::npos);
  EXPECT_EQ(error_of("validate doctor"), "'doctor': one command at a time; see hvd_bench --help");
}

TEST(CommandLine, EveryOption) {
  const Options o =
      parse(
          "train --model vgg16 --batch-size 4 --image-size 64 --classes 10 --auxiliary-head --dtype bf16 --device cpu "
          "--threads 3 --seed 9 --no-winograd --labels cycled --learning-rate 0.5 --replay r.txt --replay-shrink 64 "
          "--comm loopback "
          "--ranks 2 "
          "--schedule negotiated "
          "--allreduce-dtype bf16 --algorithm ring --bucket-mb 0.5 --fusion-threshold-mb 2 --cycle-time-ms 2.5 "
          "--cache-capacity 7 --deadline-seconds 1.5 --startup-deadline-seconds 2.5 --num-warmup-batches 0 "
          "--num-batches-per-iter 10 --num-iters 5 "
          "--target-interval 0.05 --max-time 60 --efficiency --fit --profile --no-check --db x.db --json --quiet "
          "--timeline-filename t.json")
          .options;
  EXPECT_EQ(o.model, "vgg16");
  EXPECT_EQ(o.batch_size, 4);
  EXPECT_EQ(o.image_size, 64);
  EXPECT_EQ(o.classes, 10);
  EXPECT_TRUE(o.auxiliary_head);
  EXPECT_EQ(o.compute, DataType::kBF16);
  EXPECT_EQ(o.device, Device::kCpu);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.seed, 9U);
  EXPECT_FALSE(o.winograd);
  EXPECT_EQ(o.label_rule, models::LabelRule::kCycled);
  EXPECT_DOUBLE_EQ(o.sgd.learning_rate, 0.5);
  EXPECT_EQ(o.replay_file, "r.txt");
  EXPECT_EQ(o.replay_shrink, 64);
  EXPECT_EQ(o.comm, CommBackend::kLoopback);
  EXPECT_EQ(o.ranks, 2);
  EXPECT_EQ(o.engine.schedule, Schedule::kNegotiated);
  EXPECT_EQ(o.allreduce, DataType::kBF16);
  EXPECT_EQ(o.comm_options.algorithm, comm::Algorithm::kRing);
  EXPECT_EQ(o.engine.buckets.bucket_bytes, std::size_t{1} << 19);
  EXPECT_EQ(o.engine.buckets.first_bucket_bytes, std::size_t{1} << 19) << "never larger than the others";
  EXPECT_TRUE(o.tuning.buckets_given);
  EXPECT_EQ(o.engine.negotiation.fusion.threshold_bytes, std::size_t{2} << 20);
  EXPECT_EQ(o.engine.cycle_time.count(), 2500);
  EXPECT_EQ(o.engine.negotiation.cache_capacity, 7U);
  EXPECT_EQ(o.engine.deadline.timeout.count(), 1500);
  EXPECT_EQ(o.engine.deadline.set_by, std::string("--deadline-seconds"));
  EXPECT_EQ(o.startup_deadline.timeout.count(), 2500);
  EXPECT_EQ(o.num_warmup_batches, 0);
  EXPECT_EQ(o.num_batches_per_iter, 10);
  EXPECT_EQ(o.num_iters, 5);
  EXPECT_DOUBLE_EQ(o.target_interval, 0.05);
  EXPECT_EQ(o.max_time.count(), 60);
  EXPECT_TRUE(o.efficiency && o.fit && o.profile && !o.check && o.json && o.quiet);
  EXPECT_EQ(o.db_file, "x.db");
  EXPECT_EQ(o.engine.timeline_filename, "t.json");
  EXPECT_EQ(parse("--record-replay r.txt --no-db").options.record_replay_file, "r.txt");
  EXPECT_EQ(parse("--no-db").options.db_file, "");
}

TEST(CommandLine, UnderscoresAndEqualSigns) {
  const Options o = parse("--batch_size=4 --num_warmup_batches 3 --fusion_threshold_mb=1 --db=my_file.db").options;
  EXPECT_EQ(o.batch_size, 4);
  EXPECT_EQ(o.num_warmup_batches, 3);
  EXPECT_EQ(o.engine.negotiation.fusion.threshold_bytes, std::size_t{1} << 20);
  EXPECT_EQ(o.db_file, "my_file.db");
}

TEST(CommandLine, TheCommandMayComeFirstLastOrNotAtAll) {
  for (const char* line : {"train --model vgg16", "--model vgg16 train", "--model vgg16"}) {
    EXPECT_EQ(parse(line).command, Command::kTrain) << line;
    EXPECT_EQ(parse(line).options.model, "vgg16") << line;
  }
  EXPECT_EQ(parse("doctor").command, Command::kDoctor);
  EXPECT_EQ(parse("doctor").options.db_file, "");
  EXPECT_EQ(parse("doctor --db x.db").options.db_file, "x.db");
  EXPECT_NE(error_of("doctor --model vgg16").find("--model"), std::string::npos);
}

TEST(CommandLine, TheLastOfTwoCounts) { EXPECT_EQ(parse("--threads 2 --threads 4").options.threads, 4); }

TEST(CommandLine, WhatContradictsItselfOrSaysNothing) {
  EXPECT_NE(error_of("--db x.db --no-db").find("leave one of them out"), std::string::npos);
  EXPECT_NE(error_of("--no-db --db x.db").find("leave one of them out"), std::string::npos);
  EXPECT_NE(error_of("--quiet --verbose").find("leave one of them out"), std::string::npos);
  EXPECT_TRUE(parse("--verbose").options.verbose);
  EXPECT_EQ(error_of("train doctor"), "'doctor': one command at a time; see hvd_bench --help");
  for (const char* option : {"--db", "--replay", "--record-replay", "--timeline-filename", "--tuning-folder"}) {
    const std::string kind = std::string(option) == "--tuning-folder" ? "folder" : "file";
    const auto act = [&] { parse_command_line({"hvd_bench", option, ""}, {}); };
    EXPECT_EQ(test::error_of(Errc::kInvalidArgument, act), std::string(option) + ": the " + kind + "'s name is empty");
  }
}

TEST(CommandLine, ABadVariableIsNoBusinessOfHelp) {
  const Environment junk{{"HOROVOD_CYCLE_TIME", "soon"}};
  EXPECT_EQ(parse("--help", junk).command, Command::kPrint);
  EXPECT_EQ(parse("--version", junk).command, Command::kPrint);
  EXPECT_EQ(parse("doctor", junk).command, Command::kDoctor);
}

TEST(CommandLine, HelpAndVersion) {
  const CommandLine help = parse("--help");
  EXPECT_EQ(help.command, Command::kPrint);
  for (const char* text :
       {"What to train", "--batch-size N", "Examples:", "mpirun -n 2", "HOROVOD_CYCLE_TIME", "doctor", "Exit codes"}) {
    EXPECT_NE(help.text.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(parse("--version").text.find("hvd_bench 0."), 0U);
}

TEST(CommandLine, BadValuesSayWhatWouldBeRight) {
  EXPECT_EQ(error_of("--batch-size 0"), "--batch-size: '0' is not a whole number from 1 to 65536");
  EXPECT_EQ(error_of("--batch_size -1"), "--batch-size: '-1' is not a whole number from 1 to 65536");
  EXPECT_EQ(error_of("--batch-size 99999999999999999999").substr(0, 13), "--batch-size:");
  EXPECT_EQ(error_of("--batch-size 8x"), "--batch-size: '8x' is not a whole number from 1 to 65536");
  EXPECT_EQ(error_of("--learning-rate nan"), "--learning-rate: 'nan' is not a number from 0 to 1000");
  EXPECT_EQ(error_of("--schedule statik"),
            "--schedule: 'statik' is not one of static, sharded, negotiated, none (did you mean static?)");
  EXPECT_EQ(error_of("--device reference"), "--device: 'reference' is not one of auto, cpu, cuda");
  EXPECT_EQ(error_of("--comm hierarchical"), "--comm: 'hierarchical' is not one of auto, none, loopback, mpi, nccl");
  EXPECT_EQ(error_of("--modle vgg16"),
            "--modle: there is no such option (did you mean --model?); see hvd_bench --help");
  EXPECT_EQ(error_of("trian"),
            "'trian': there is no such command (did you mean train?); options begin with --, see hvd_bench --help");
  EXPECT_NE(error_of("--model").find("--model"), std::string::npos);
  EXPECT_EQ(error_of("--model --batch-size 4"), "--model: the value is missing (found --batch-size)");
  EXPECT_NE(error_of("--algorithm tree").find("doubling"), std::string::npos);
  for (const std::string command : {"coll", "simulate"}) {
    EXPECT_NE(error_of("--ranks 2 " + command).find("'" + command + "' has options of its own and comes first"),
              std::string::npos);
  }
}

TEST(CommandLine, OfGpus) {
  const Options plain = parse("").options;
  EXPECT_EQ(plain.device, Device::kAuto);
  EXPECT_EQ(plain.gpu.fusion_level, 2);
  EXPECT_TRUE(plain.gpu.schedule.graph);
  EXPECT_TRUE(plain.gpu.schedule.ahead);
  EXPECT_TRUE(plain.gpu.schedule.overlap);
  EXPECT_TRUE(plain.gpu.nccl.register_memory);
  EXPECT_FALSE(plain.gpu.deterministic);

  const Options tf32 = parse("--device cuda --comm nccl --dtype tf32 --fp16-allreduce").options;
  EXPECT_EQ(tf32.device, Device::kCuda);
  EXPECT_EQ(tf32.comm, CommBackend::kNccl);
  EXPECT_EQ(tf32.compute, DataType::kF32);
  EXPECT_TRUE(tf32.gpu.tf32);
  EXPECT_EQ(tf32.allreduce, DataType::kF16);
  EXPECT_FALSE(parse("--dtype tf32 --dtype fp16").options.gpu.tf32);
  EXPECT_EQ(parse("--allreduce-dtype fp16").options.allreduce, DataType::kF16);

  const Options parsed =
      parse(
          "--fusion-level 1 --no-cuda-graph --no-launch-ahead --no-overlap --deterministic --loss-scale 1024 --tune "
          "--tune-schedule --tuning-folder w --nccl-max-ctas 8 --no-nccl-registration --share-gpus "
          "--deadline-seconds 5")
          .options;
  EXPECT_TRUE(parsed.tuning.on);
  EXPECT_FALSE(parsed.tuning.buckets_given);
  const GpuOptions& knobs = parsed.gpu;
  EXPECT_EQ(knobs.fusion_level, 1);
  EXPECT_FALSE(knobs.schedule.graph);
  EXPECT_FALSE(knobs.schedule.ahead);
  EXPECT_FALSE(knobs.schedule.overlap);
  EXPECT_TRUE(knobs.deterministic);
  EXPECT_EQ(knobs.loss_scale, 1024);
  EXPECT_TRUE(knobs.tune);
  EXPECT_EQ(knobs.tuning_folder, "w");
  EXPECT_EQ(knobs.nccl.max_ctas, 8);
  EXPECT_FALSE(knobs.nccl.register_memory);
  EXPECT_TRUE(knobs.nccl.share_gpus);
  EXPECT_EQ(knobs.nccl.deadline.timeout.count(), 5000);
  EXPECT_EQ(error_of("--fusion-level 3"), "--fusion-level: '3' is not a whole number from 0 to 2");
}

TEST(CommandLine, NoReductionCanBeSaidInTwoWays) {
  for (const char* line : {"--comm none", "--schedule none", "--comm none --schedule none"}) {
    const Options o = parse(line).options;
    EXPECT_EQ(o.engine.schedule, Schedule::kNone) << line;
    EXPECT_EQ(o.comm, CommBackend::kAuto) << line;
  }
  EXPECT_EQ(parse("--schedule none --comm loopback").options.comm, CommBackend::kLoopback);
  EXPECT_NE(error_of("--comm none --schedule static").find("leave one of them out"), std::string::npos);
  EXPECT_NE(error_of("--comm none --efficiency").find("--efficiency"), std::string::npos);
  EXPECT_NE(error_of("--comm mpi --ranks 2").find("--ranks"), std::string::npos);
  EXPECT_NE(error_of("--replay a --record-replay b").find("leave one out"), std::string::npos);
  EXPECT_NE(error_of("--replay-shrink 8").find("give --replay FILE"), std::string::npos);
  EXPECT_NE(error_of("--replay a --replay-shrink 0").find("from 1"), std::string::npos);
}

TEST(CommandLine, HorovodsVariables) {
  const Environment environment{{"HOROVOD_FUSION_THRESHOLD", "1048576"},
                                {"HOROVOD_CYCLE_TIME", "2.5"},
                                {"HOROVOD_CACHE_CAPACITY", "0"},
                                {"HOROVOD_TIMELINE", "t.json"}};
  const Options o = parse("", environment).options;
  EXPECT_EQ(o.engine.negotiation.fusion.threshold_bytes, std::size_t{1} << 20);
  EXPECT_EQ(o.engine.cycle_time.count(), 2500);
  EXPECT_EQ(o.engine.negotiation.cache_capacity, 0U);
  EXPECT_EQ(o.engine.timeline_filename, "t.json");
  const Options wins = parse("--fusion-threshold-mb 2 --timeline-filename u.json", environment).options;
  EXPECT_EQ(wins.engine.negotiation.fusion.threshold_bytes, std::size_t{2} << 20);
  EXPECT_EQ(wins.engine.timeline_filename, "u.json");
  EXPECT_EQ(error_of("", {{"HOROVOD_FUSION_THRESHOLD", "64MB"}}).find("HOROVOD_FUSION_THRESHOLD (bytes): '64MB'"), 0U);
  EXPECT_EQ(error_of("", {{"HOROVOD_CYCLE_TIME", "-1"}}).find("HOROVOD_CYCLE_TIME"), 0U);
  EXPECT_EQ(error_of("", {{"HOROVOD_CACHE_CAPACITY", "x"}}).find("HOROVOD_CACHE_CAPACITY"), 0U);
}

TEST(Values, DidYouMean) {
  const std::vector<std::string> models{"inception3", "resnet50", "resnet101", "vgg16"};
  EXPECT_EQ(did_you_mean("resnet11", models), " (did you mean resnet101?)");
  EXPECT_EQ(did_you_mean("vgg61", models), " (did you mean vgg16?)");
  EXPECT_EQ(did_you_mean("bert", models), "");
}

}  // namespace
}  // namespace hvd::bench::cli_options_test
