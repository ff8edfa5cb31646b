"""Wire messages of kubelet, runtime and plugins, made from the `.proto` files beside this one (`make protos`)."""
