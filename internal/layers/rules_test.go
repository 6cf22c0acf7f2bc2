package layers

// rule says what the packages of some folders may import. Folders are paths below
// the root of the repository, and stand for everything below them that no longer
// path of another rule claims. A folder's own packages may always import each other.
type rule struct {
	from []string
	// may lists folders of this repository that from may import.
	may []string
	// never outranks may. Beside folders it takes prefixes of foreign import paths.
	never []string
}

// kubernetes is refused where code must work without any cluster.
var kubernetes = []string{"k8s.io", "sigs.k8s.io"}

// parts are what controllers are made of. None imports another.
var parts = []string{
	"internal/bootstrap", "internal/drain", "internal/freshness", "internal/index", "internal/node",
	"internal/preservation", "internal/revision", "internal/target", "internal/tasks", "internal/validation", "internal/wording",
}

// rules is the architecture. Rows of folders that do not exist yet are wanted: they
// say what may come.
var rules = []rule{
	// What others import: types, manifests, generated protocols, the driver SDK.
	{from: []string{"api"}},
	{from: []string{"config"}},
	{from: []string{"proto"}},
	{from: []string{"driver"}, may: []string{"api"}, never: []string{"internal"}},

	// Code that knows nothing of Kubernetes.
	{from: []string{"internal/flow"}, never: kubernetes},
	{
		from:  []string{"internal/hypervisor", "internal/image", "internal/network"},
		may:   []string{"internal/flow", "internal/hypervisor", "internal/image", "internal/network", "proto"},
		never: kubernetes,
	},

	// Virtual machines. The driver goes through objects, like a driver outside.
	{from: []string{"internal/vmcontroller"}, may: []string{"api", "proto", "internal/flow", "internal/identity"}},
	{from: []string{"drivers/vm"}, may: []string{"api", "driver"}, never: []string{"internal"}},

	// What controllers stand on.
	{from: parts, may: []string{"api", "internal/flow"}},
	{
		from: []string{"internal/instance", "internal/safety"},
		may:  []string{"api", "driver", "internal/flow", "internal/tasks"},
	},

	// Controllers. None imports another: they meet in the objects only.
	{
		from: []string{
			"internal/machine", "internal/machineset", "internal/machinedeployment", "internal/machineclass",
		},
		may: append([]string{"api", "driver", "internal/instance", "internal/flow"}, parts...),
	},
	{
		from: []string{"internal/capi"},
		may: []string{
			"api", "driver", "internal/instance", "internal/flow", "internal/bootstrap", "internal/freshness", "internal/index",
			"internal/safety", "internal/tasks", "internal/wording",
		},
	},

	// What reads what controllers wrote, to tell monitoring systems and people.
	{from: []string{"internal/metrics"}, may: []string{"api", "driver", "internal/drain"}},
	{from: []string{"internal/explain"}, may: append([]string{"api", "driver"}, parts...)},
	{from: []string{"internal/rollout"}, may: append([]string{"api", "internal/explain"}, parts...)},

	// What runs around the controllers on one host.
	{
		from: []string{"internal/hostrunner", "internal/local", "internal/identity"},
		may:  []string{"api", "proto", "internal/flow"},
	},

	// Where everything is put together.
	{
		from:  []string{"internal/manager", "provider"},
		may:   []string{"api", "config", "proto", "driver", "drivers", "internal"},
		never: []string{"internal/local", "internal/hostrunner", "internal/cli", "cmd"},
	},
	{
		from: []string{"internal/cli", "cmd", "test", "bench"},
		may: []string{
			"api", "config", "proto", "driver", "drivers", "provider", "internal", "cmd", "test", "bench", "guest",
		},
	},

	// Programs and modules that stand apart.
	{from: []string{"guest"}, may: []string{"proto"}, never: []string{"internal"}},
	{from: []string{"compat"}, may: []string{"api", "driver", "provider"}},
	{from: []string{"controlplane"}},
	{from: []string{"hack/image"}},
	{from: []string{"tools"}},
	{from: []string{"internal/layers"}},
}

// testsMay lists what the test files of every layer may import beside their rule:
// the harness, drivers to test with, and the manifests.
var testsMay = []string{"test", "driver", "config"}
