package cloud

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Services is an informer of Services for the controller of load balancers. That controller watches only the cluster of the
// Services, so that it would miss changes in the infrastructure cluster, such as a new address.
type Services struct {
	coreinformers.ServiceInformer
	informer *repeatable
}

// NewServices returns a Services. Pass it to the controller of load balancers instead of the informer.
func NewServices(informer coreinformers.ServiceInformer) *Services {
	return &Services{informer, &repeatable{SharedIndexInformer: informer.Informer()}}
}

// Informer implements coreinformers.ServiceInformer.
func (s *Services) Informer() cache.SharedIndexInformer { return s.informer }

// Infrastructure returns the handler of events of Services in the infrastructure cluster. The controller then reconciles
// the Services that they belong to.
func (s *Services) Infrastructure() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, _ bool) {
			if loadBalancer, ok := object.(*corev1.Service); ok && len(loadBalancer.Status.LoadBalancer.Ingress) > 0 {
				s.repeat(loadBalancer)
			}
		},
		UpdateFunc: func(before, object any) {
			old, ok := before.(*corev1.Service)
			loadBalancer, is := object.(*corev1.Service)
			if ok && is && !(equality.Semantic.DeepEqual(old.Spec, loadBalancer.Spec) && equality.Semantic.DeepEqual(old.Status, loadBalancer.Status)) {
				s.repeat(loadBalancer)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if loadBalancer, ok := object.(*corev1.Service); ok {
				s.repeat(loadBalancer)
			}
		},
	}
}

// repeat lets the controller reconcile the Service that a Service in the infrastructure cluster belongs to, if it needs one.
func (s *Services) repeat(loadBalancer *corev1.Service) {
	namespace, name, _ := strings.Cut(loadBalancer.Annotations[AnnotationService], "/")
	service, err := s.Lister().Services(namespace).Get(name)
	if err != nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil {
		return
	}
	s.informer.repeat(service)
}

// repeatable is an informer that can call its handlers again for an object.
type repeatable struct {
	cache.SharedIndexInformer
	mu       sync.Mutex
	handlers []cache.ResourceEventHandler
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (r *repeatable) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	r.mu.Lock()
	r.handlers = append(r.handlers, handler)
	r.mu.Unlock()
	return r.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, period)
}

func (r *repeatable) repeat(service *corev1.Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, handler := range r.handlers {
		handler.OnAdd(service, false)
	}
}
