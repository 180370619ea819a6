// Tests the verdicts of `hvd_bench doctor` on given measurements.
#include "bench/cli/doctor/doctor.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/cli/doctor/machine_rate.h"
#include "bench/cli/doctor/mpi_probe.h"

namespace hvd::bench::doctor_test {
namespace {

using Level = Finding::Level;

TEST(Doctor, WarnsOfBf16ThatIsSlowerThanFp32) {
  const Finding slow = judge_bf16(40e9, 200e9, "no AMX: use --dtype fp32");
  EXPECT_EQ(slow.level, Level::kWarning);
  EXPECT_EQ(slow.text, "40.0 GFLOP/s, 0.2 x fp32");
  EXPECT_EQ(slow.advice, "no AMX: use --dtype fp32");

  const Finding fast = judge_bf16(900e9, 200e9, "");
  EXPECT_EQ(fast.level, Level::kGood);
  EXPECT_EQ(fast.text, "900.0 GFLOP/s, 4.5 x fp32");
  EXPECT_EQ(fast.advice, "");

  const Finding disturbed = judge_bf16(100e9, 200e9, "");
  EXPECT_EQ(disturbed.level, Level::kWarning);
  EXPECT_NE(disturbed.advice.find("another program"), std::string::npos);
}

TEST(Doctor, WarnsOfNetworksThatGetReferenceCode) {
  EXPECT_EQ(judge_reference_code("").level, Level::kGood);
  const Finding slow = judge_reference_code("resnet50, 32 pixels, batch 1: oneDNN 2.6.3 has no compiled code");
  EXPECT_EQ(slow.level, Level::kWarning);
  EXPECT_EQ(slow.text, "resnet50, 32 pixels, batch 1: oneDNN 2.6.3 has no compiled code");
}

TEST(Doctor, WarnsOfALibraryThatIsTooOldForTheProcessor) {
  EXPECT_EQ(judge_library("/usr/lib/libdnnl.so.2.6", "").level, Level::kGood);
  const Finding old = judge_library("/usr/lib/libdnnl.so.2.6", "2.6.3 compiles no convolutions");
  EXPECT_EQ(old.level, Level::kWarning);
  EXPECT_EQ(old.text, "/usr/lib/libdnnl.so.2.6: 2.6.3 compiles no convolutions");
  EXPECT_NE(old.advice.find("HVD_ONEDNN_ROOT"), std::string::npos);
}

TEST(Doctor, SaysHowRootAllowsItselfOpenMpi) {
  constexpr unsigned kRoot = 0, kUser = 1000;
  const std::string open_mpi = "Open MPI v4.1.4, pml default, btl default";
  const auto said = judge_root(kRoot, open_mpi, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}});
  ASSERT_TRUE(said.has_value()) << "the second variable is missing";
  EXPECT_EQ(said->level, Level::kNote);
  EXPECT_EQ(said->text,
            "refuses root unless both are set: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
  EXPECT_TRUE(judge_root(kRoot, open_mpi, {}).has_value());
  const Environment both{{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  EXPECT_FALSE(judge_root(kRoot, open_mpi, both).has_value());
  EXPECT_FALSE(judge_root(kUser, open_mpi, {}).has_value());
  EXPECT_FALSE(judge_root(kRoot, "MPICH Version:\t4.0.2", {}).has_value());
}

TEST(Doctor, NamesTheVectorsOfTheArchitecture) {
  const auto judged = [](std::vector<std::string> flags) {
    Processor cpu;
    cpu.flags = std::move(flags);
    return judge_vectors(cpu);
  };
  const Finding xeon = judged({"avx2", "avx512f", "amx_bf16"});
  EXPECT_EQ(xeon.level, Level::kGood);
  EXPECT_EQ(xeon.text, "AVX2, AVX-512, AMX");
  const Finding grace = judged({"asimd", "sve", "sve2", "svebf16", "i8mm", "bf16"});
  EXPECT_EQ(grace.level, Level::kGood);
  EXPECT_EQ(grace.text, "NEON, SVE, SVE2, BF16, I8MM");
  const Finding old = judged({"sse2", "avx"});
  EXPECT_EQ(old.level, Level::kWarning);
  EXPECT_EQ(old.text, "no AVX2: compute will be slow");
}

// Two cores at 3 GHz.
Fp32Rates rates(double peak, double convolution) {
  return {{.flops = peak, .clock = 3e9}, VectorLevel::kAvx2, 2, convolution};
}

TEST(Doctor, ComparesAConvolutionWithAPlausiblePeak) {
  const std::vector<Finding> findings = judge_fp32(rates(180e9, 150e9));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].level, Level::kGood);
  EXPECT_EQ(findings[0].text, "180.0 GFLOP/s in registers on 2 threads (AVX2 at 3.0 GHz)");
  EXPECT_EQ(findings[1].level, Level::kGood);
  EXPECT_EQ(findings[1].text, "150.0 GFLOP/s in a direct 3 x 3 convolution, 83 % of the peak");
  EXPECT_EQ(judge_fp32(rates(180e9, 60e9)).at(1).level, Level::kWarning);
  EXPECT_EQ(judge_fp32(rates(180e9, 0)).size(), 1U);
}

// Vectors that the compiler had split gave this peak of 14 GFLOP/s on a processor that reached 136 in a convolution.
TEST(Doctor, APeakBelowAConvolutionIsNotUsed) {
  for (const double peak : {14e9, 135.9e9}) {
    const std::vector<Finding> findings = judge_fp32(rates(peak, 136e9));
    ASSERT_EQ(findings.size(), 2U);
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.level, Level::kWarning) << finding.text;
      EXPECT_EQ(finding.text.find('%'), std::string::npos) << finding.text;
      EXPECT_FALSE(finding.advice.empty());
    }
    EXPECT_NE(findings[0].text.find("cannot be right"), std::string::npos) << findings[0].text;
  }
}

TEST(Doctor, CondensesWhatMpiPrints) {
  EXPECT_EQ(condensed("-----------\nA component was\nnot found.\n\n  Host:   a\n======\n"),
            "A component was not found. Host: a");
  EXPECT_EQ(condensed(""), "");
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word ";
  EXPECT_LE(condensed(words).size(), 804U);
  EXPECT_TRUE(condensed(words).ends_with("word ..."));
}

TEST(Doctor, APeakAboveWhatTheUnitsCanDoIsNotUsed) {
  const double limit = 2 * most_flops(VectorLevel::kAvx2, 3e9);
  EXPECT_EQ(judge_fp32(rates(1.09 * limit, 150e9))[0].level, Level::kGood);
  const std::vector<Finding> found = judge_fp32(rates(1.11 * limit, 150e9));
  EXPECT_EQ(found[0].level, Level::kWarning);
  EXPECT_NE(found[0].text.find("cannot be right"), std::string::npos) << found[0].text;
  EXPECT_EQ(found.at(1).level, Level::kWarning);
}

// Tests that the peak rate of each vector level is one that a processor can have. Rates are compared with the clock
// that is measured in between, so that the result does not depend on the processor's speed or on other programs.

class Peak : public ::testing::TestWithParam<VectorLevel> {};

// Processors begin multiply_add_units() multiply-adds per cycle, or half of that. Vectors that the compiler split gave
// 0.04 of two; a chain that it left out, 1.09. Other programs can disturb one measurement of the rate or of the clock,
// but hardly each of ten.
TEST_P(Peak, IsWhatTheUnitsOfAProcessorCanDo) {
  double share = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const PeakRate peak = peak_rate(1, GetParam());
    ASSERT_GT(peak.clock, 0);
    share = peak.flops / most_flops(GetParam(), peak.clock);
    if (share > 0.1 && share < 1.05) return;  // a busy hyper-thread takes half of the units
  }
  ADD_FAILURE() << share << " of " << multiply_add_units() << " multiply-adds per cycle";
}

TEST(VectorPeak, FlopsAreTwoPerLane) {
  EXPECT_EQ(most_flops(VectorLevel::kBase, 3e9), multiply_add_units() * 24e9);
  EXPECT_EQ(most_flops(VectorLevel::kAvx2, 3e9), multiply_add_units() * 48e9);
  EXPECT_EQ(most_flops(VectorLevel::kAvx512, 3e9), multiply_add_units() * 96e9);
  EXPECT_EQ(flops_per_round(VectorLevel::kAvx2), 2 * flops_per_round(VectorLevel::kBase));
  EXPECT_EQ(dependent_additions(1 << 10), 1 << 10);
}

// The chains stay or become 1, so that neither overflow nor denormal numbers slow them down.
TEST_P(Peak, ChainsEndAtOne) {
  const auto chains = static_cast<float>(flops_per_round(GetParam()) / 2);
  EXPECT_NEAR(multiply_add(GetParam(), 1 << 16) / chains, 1, 0.01);
}

INSTANTIATE_TEST_SUITE_P(, Peak, ::testing::ValuesIn(available_levels()),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace

}  // namespace hvd::bench::doctor_test
