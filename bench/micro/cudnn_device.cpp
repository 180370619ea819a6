// Prints a GPU's properties as cuDNN describes them (JSON), for a file of tests/cudnn/devices. With this file,
// tests check plans for that GPU on machines without a GPU.
//
//   cudnn_device [INDEX]       properties of a GPU of this machine (default 0)
//   cudnn_device --read FILE   the properties that cuDNN reads from a file; fails if the file is not usable
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/gpu/device.h"
#include "models/cudnn/library/descriptor.h"

namespace {

using namespace hvd;
using namespace hvd::models::cudnn;

/// CUDNN_ATTR_DEVICEPROP_DEVICE_ID, which only cuDNN's headers since 9.8 have. descriptor.h has the other attributes.
constexpr auto kAttrDevicePropId = static_cast<cudnnBackendAttributeName_t>(2700);

std::string text_of(Descriptor& properties) {
  properties.finalize("device properties");
  return properties.get_text(kAttrDevicePropJson);
}

std::string properties_of_gpu(const Library& library, int index) {
  const gpu::DeviceList gpus = gpu::list_devices();
  if (gpus.devices.empty()) throw Error(Errc::kUnsupported, "no GPU can be used: " + gpus.reason);
  Descriptor properties(library, kDevicePropDescriptor);
  properties.set(kAttrDevicePropId, CUDNN_TYPE_INT32, 1, &index);
  return text_of(properties);
}

std::string properties_of_text(const Library& library, const std::string& json) {
  Descriptor properties(library, kDevicePropDescriptor);
  properties.set(kAttrDevicePropJson, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(json.size()), json.data());
  return text_of(properties);
}

std::string content_of(const char* file) {
  std::string text = read_file(file).value_or("");
  if (text.empty()) throw Error(Errc::kIo, std::string(file) + ": cannot be read, or is empty");
  return text;
}

int run(int argc, char** argv) {
  const bool from_file = argc == 3 && std::strcmp(argv[1], "--read") == 0;
  int index = 0;
  if (!from_file && argc > 1) {
    const char* const end = argv[1] + std::strlen(argv[1]);
    const auto [parsed, fault] = std::from_chars(argv[1], end, index);
    if (argc != 2 || fault != std::errc{} || parsed != end || index < 0) {
      throw Error(Errc::kInvalidArgument, "usage: cudnn_device [INDEX] | cudnn_device --read FILE");
    }
  }
  const auto library = Library::load();
  if (library->version() < kDevicelessVersion) {
    throw Error(Errc::kUnsupported, fmt::format("{} is cuDNN {}; device properties need {}", library->name(),
                                                library->version().text(), kDevicelessVersion.text()));
  }
  const std::string text =
      from_file ? properties_of_text(*library, content_of(argv[2])) : properties_of_gpu(*library, index);
  // Check that the planner can use the text: the planner sets these properties in the same way.
  if (!from_file) static_cast<void>(properties_of_text(*library, text));
  std::printf("%s\n", text.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.code());
  }
}
