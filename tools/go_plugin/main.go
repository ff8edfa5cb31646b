// A resource plugin that uses KubeWharf's published types only. It hands out units of one resource, by default
// example.com/tokens, and serves its own socket below the plugin directory.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	plugin "k8s.io/kubelet/pkg/apis/resourceplugin/v1alpha1"
)

type server struct {
	resource string
	mode     string
	mu       sync.Mutex
	pods     map[string]map[string]*plugin.ResourceAllocation
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "ResourcePlugin", Name: s.resource, SupportedVersions: []string{"v1alpha1"}}, nil
}

func (s *server) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered=%v %s", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (s *server) hints() map[string]*plugin.ListOfTopologyHints {
	if s.mode == "empty" {
		return map[string]*plugin.ListOfTopologyHints{s.resource: {}}
	}
	return map[string]*plugin.ListOfTopologyHints{s.resource: nil}
}

func (s *server) GetTopologyHints(_ context.Context, r *plugin.ResourceRequest) (*plugin.ResourceHintsResponse, error) {
	return &plugin.ResourceHintsResponse{PodUid: r.PodUid, PodNamespace: r.PodNamespace, PodName: r.PodName,
		ContainerName: r.ContainerName, ResourceName: s.resource, ResourceHints: s.hints()}, nil
}

func (s *server) GetPodTopologyHints(_ context.Context, r *plugin.PodResourceRequest) (*plugin.PodResourceHintsResponse, error) {
	return &plugin.PodResourceHintsResponse{PodUid: r.PodUid, ResourceName: s.resource, ResourceHints: s.hints()}, nil
}

func (s *server) info(quantity float64) *plugin.ResourceAllocation {
	return &plugin.ResourceAllocation{ResourceAllocation: map[string]*plugin.ResourceAllocationInfo{s.resource: {
		IsNodeResource: true, IsScalarResource: true, AllocatedQuantity: quantity,
		Envs: map[string]string{"TOKENS": "granted"}}}}
}

func (s *server) Allocate(_ context.Context, r *plugin.ResourceRequest) (*plugin.ResourceAllocationResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	allocation := s.info(r.ResourceRequests[s.resource])
	if s.pods[r.PodUid] == nil {
		s.pods[r.PodUid] = map[string]*plugin.ResourceAllocation{}
	}
	s.pods[r.PodUid][r.ContainerName] = allocation
	return &plugin.ResourceAllocationResponse{PodUid: r.PodUid, PodNamespace: r.PodNamespace, PodName: r.PodName,
		ContainerName: r.ContainerName, ResourceName: s.resource, AllocationResult: allocation}, nil
}

func (s *server) AllocateForPod(_ context.Context, r *plugin.PodResourceRequest) (*plugin.PodResourceAllocationResponse, error) {
	return &plugin.PodResourceAllocationResponse{PodUid: r.PodUid, ResourceName: s.resource,
		AllocationResult: s.info(r.ResourceRequests[s.resource])}, nil
}

func (s *server) RemovePod(_ context.Context, r *plugin.RemovePodRequest) (*plugin.RemovePodResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, r.PodUid)
	return &plugin.RemovePodResponse{}, nil
}

func (s *server) GetResourcesAllocation(context.Context, *plugin.GetResourcesAllocationRequest) (*plugin.GetResourcesAllocationResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &plugin.GetResourcesAllocationResponse{PodResources: map[string]*plugin.ContainerResources{}}
	for pod, containers := range s.pods {
		answer.PodResources[pod] = &plugin.ContainerResources{ContainerResources: containers}
	}
	return answer, nil
}

func (s *server) GetTopologyAwareResources(_ context.Context, r *plugin.GetTopologyAwareResourcesRequest) (*plugin.GetTopologyAwareResourcesResponse, error) {
	return &plugin.GetTopologyAwareResourcesResponse{PodUid: r.PodUid}, nil
}

func (s *server) GetTopologyAwareAllocatableResources(context.Context, *plugin.GetTopologyAwareAllocatableResourcesRequest) (*plugin.GetTopologyAwareAllocatableResourcesResponse, error) {
	return &plugin.GetTopologyAwareAllocatableResourcesResponse{AllocatableResources: map[string]*plugin.AllocatableTopologyAwareResource{
		s.resource: {IsNodeResource: true, IsScalarResource: true, AggregatedAllocatableQuantity: 8, AggregatedCapacityQuantity: 8}}}, nil
}

func (s *server) GetResourcePluginOptions(context.Context, *plugin.Empty) (*plugin.ResourcePluginOptions, error) {
	return &plugin.ResourcePluginOptions{WithTopologyAlignment: true, NeedReconcile: true}, nil
}

func (s *server) PreStartContainer(context.Context, *plugin.PreStartContainerRequest) (*plugin.PreStartContainerResponse, error) {
	return &plugin.PreStartContainerResponse{}, nil
}

func main() {
	socket := flag.String("socket", "", "socket to serve")
	resource := flag.String("resource", "example.com/tokens", "name of the resource")
	mode := flag.String("mode", "", "empty: nothing ever fits")
	flag.Parse()
	os.Remove(*socket)
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	own := &server{resource: *resource, mode: *mode, pods: map[string]map[string]*plugin.ResourceAllocation{}}
	serving := grpc.NewServer()
	registration.RegisterRegistrationServer(serving, own)
	plugin.RegisterResourcePluginServer(serving, own)
	log.Fatal(serving.Serve(listener))
}
