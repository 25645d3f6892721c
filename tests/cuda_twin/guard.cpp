// Makes a CPU build of PyTorch accept the device "cuda:0". Nothing is computed here: see twin.py.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {

// What PyTorch asks before it uses CUDA. It looks this class up by its name.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at

namespace {

using c10::Device, c10::DeviceType, c10::Stream;

// Autograd asks for the device and its stream in each node of a graph. There is one device with one stream.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Device device() { return Device(DeviceType::CUDA, 0); }
  static Stream stream() { return Stream(Stream::DEFAULT, device()); }
  Device getDevice() const override { return device(); }
  Device exchangeDevice(Device) const override { return device(); }
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace
