"""What kernels share: functions of the device, and how kernels are launched."""
