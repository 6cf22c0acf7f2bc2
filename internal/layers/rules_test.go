package layers

import "slices"

// rule lists what the packages in some directories may import. Directories are paths relative to the root of the
// repository. A directory includes everything below it, except directories with their own rules. Packages in the same
// directory may always import each other.
type rule struct {
	from []string
	// may lists the directories of this repository that the packages may import.
	may []string
	// never takes precedence over may. In addition to directories, it may contain prefixes of external import paths.
	never []string
}

// kubernetes is forbidden for code that must work without a cluster.
var kubernetes = []string{"k8s.io", "sigs.k8s.io"}

// parts are the building blocks of controllers. They must not import each other, except for noderef, flow, apierror and
// expectations.
var parts = []string{
	"internal/reconcile/apierror", "internal/reconcile/cascade", "internal/reconcile/cascade/orphaning", "internal/reconcile/events",
	"internal/reconcile/expectations", "internal/reconcile/fieldindex", "internal/reconcile/messages",
	"internal/reconcile/target", "internal/reconcile/tasks", "internal/reconcile/validation",
	"internal/lifecycle/bootstrap", "internal/lifecycle/drain", "internal/lifecycle/noderef", "internal/lifecycle/preservation",
	"internal/lifecycle/scarcity",
}

// pool contains the pure rules about a pool of machines, for all packages that modify or describe one.
const pool = "internal/pool"

// budget contains the rules of a pool that validation uses, too.
const budget = "internal/pool/budget"

// timeouts contains pure rules that depend on the error codes of drivers.
const timeouts = "internal/lifecycle/timeouts"

// everything lists what programs and tests may import.
var everything = []string{"api", "config", "examples", "proto", "driver", "drivers", "provider", "internal", "cmd", "test", "bench", "guest"}

// controllers may be imported only by the manager.
const controllers = "internal/controllers"

// rules define the architecture. Rows for directories that do not exist yet are allowed: they are planned.
var rules = []rule{
	// Packages for external users: types, manifests, generated protocols, the driver SDK.
	{from: []string{"api"}},
	{from: []string{"client"}, may: []string{"api"}},
	{from: []string{"config"}},
	{from: []string{"proto"}},
	{from: []string{"driver"}, may: []string{"api"}, never: []string{"internal"}},
	{from: []string{"driver/plugin"}, may: []string{"api", "driver", "proto"}, never: []string{"internal"}},

	// Code that does not depend on Kubernetes.
	{from: []string{"internal/reconcile/flow"}, never: kubernetes},
	{from: []string{"internal/ca"}, never: kubernetes},
	{from: []string{"internal/child"}, never: kubernetes},
	{from: []string{"internal/confine"}, never: kubernetes},
	{from: []string{"internal/connlimit"}, never: kubernetes},
	{from: []string{"internal/unixsocket"}, never: kubernetes},
	{from: []string{"internal/loadbalancer"}, may: []string{"internal/connlimit", "internal/specialaddress"}, never: kubernetes},
	{from: []string{"internal/loop"}, never: kubernetes},
	{from: []string{"internal/placeholder"}, never: kubernetes},
	{from: []string{"internal/specialaddress"}, never: kubernetes},
	{from: []string{"internal/tracing"}, never: kubernetes},
	{from: []string{"internal/vm"}, may: []string{"internal/ca", "internal/child", "internal/confine", "internal/connlimit", "internal/placeholder", "internal/specialaddress", "internal/tracing", "internal/unixsocket", "proto"}, never: kubernetes},

	// Virtual machines. The driver uses only API objects, like an external driver.
	{
		from: []string{"internal/controllers/virtualmachine"},
		may: []string{
			"api", "proto", "internal/reconcile/flow", "internal/reconcile/events", "internal/reconcile/expectations",
			"internal/reconcile/messages", "internal/reconcile/tasks", "internal/connlimit", "internal/specialaddress", "internal/vm/identity",
			"internal/reconcile/apierror", "internal/reconcile/edge", "internal/tracing",
			"internal/vm/lease", "internal/vm/storage",
		},
	},
	{from: []string{"drivers/vm"}, may: []string{"api", "driver"}, never: []string{"internal"}},

	// Packages that controllers use.
	{from: parts, may: []string{"api", budget, "internal/lifecycle/noderef", "internal/placeholder", "internal/reconcile/flow", "internal/reconcile/apierror", "internal/reconcile/expectations"}},
	{from: []string{"internal/reconcile/relist"}},
	{from: []string{timeouts}, may: []string{"api", "driver"}},
	{
		from: []string{"internal/lifecycle/instance", "internal/lifecycle/orphans"},
		may:  []string{"api", "driver", timeouts, "internal/reconcile/flow", "internal/reconcile/tasks"},
	},
	{from: []string{"internal/reconcile/edge"}, may: []string{"internal/reconcile/apierror", "internal/reconcile/events", "internal/reconcile/expectations", "internal/reconcile/flow", "internal/reconcile/messages", "internal/tracing"}},
	{from: []string{"internal/reconcile/inuse"}, may: []string{"internal/reconcile/apierror", "internal/reconcile/edge", "internal/reconcile/expectations"}},
	{
		from: []string{pool},
		may: []string{
			"api", "internal/lifecycle/noderef", "internal/lifecycle/preservation", "internal/lifecycle/scarcity",
			"internal/reconcile/cascade/orphaning", "internal/reconcile/messages", "internal/reconcile/validation",
		},
		never: []string{"sigs.k8s.io/controller-runtime", "k8s.io/client-go", "k8s.io/utils/clock", "github.com/go-logr"},
	},
	{from: []string{"internal/lifecycle/nodes"}, may: []string{"api", "internal/lifecycle/ownership", "internal/reconcile/expectations", "internal/reconcile/target"}},
	{from: []string{"internal/lifecycle/outage"}, may: []string{"api", timeouts}},
	{
		from: []string{"internal/lifecycle/scarcity/capacity"},
		may:  []string{"api", "driver", "internal/lifecycle/instance", "internal/lifecycle/scarcity"},
	},
	{from: []string{"internal/lifecycle/replacement"}, may: []string{"api", budget}},
	{from: []string{"internal/lifecycle/ownership"}, may: []string{"api", "internal/reconcile/fieldindex"}},
	{
		from: []string{"internal/lifecycle/instance/steps"},
		may:  []string{"api", "internal/lifecycle/instance", "internal/lifecycle/ownership", "internal/reconcile/flow"},
	},

	// Controllers. They must not import each other: they communicate only through API objects.
	{
		from: []string{
			"internal/controllers/machine", "internal/controllers/machineset",
			"internal/controllers/machinedeployment", "internal/controllers/machineclass", "internal/controllers/legacyclass",
			"internal/controllers/nodecertificate", "internal/controllers/warnings",
		},
		may: slices.Concat([]string{"api", "driver", "internal/lifecycle/instance", "internal/lifecycle/nodes", "internal/lifecycle/outage", "internal/lifecycle/ownership", "internal/lifecycle/replacement", "internal/reconcile/edge", "internal/reconcile/flow", "internal/reconcile/inuse", pool, timeouts}, parts),
	},
	{
		from: []string{"internal/controllers/capi"},
		may: []string{
			"api", "driver", "internal/lifecycle/instance", "internal/lifecycle/bootstrap", "internal/lifecycle/orphans", "internal/lifecycle/ownership",
			"internal/reconcile/edge", "internal/reconcile/flow", "internal/reconcile/expectations", "internal/reconcile/fieldindex", "internal/reconcile/inuse",
			"internal/reconcile/tasks", "internal/reconcile/messages", "internal/reconcile/apierror", "internal/reconcile/events",
			"internal/loadbalancer", "internal/pool/liveupdate", "internal/specialaddress",
		},
	},

	// Packages that present the results of controllers to monitoring systems and users.
	{from: []string{"internal/observe/metrics"}, may: []string{"api", "driver", "internal/lifecycle/drain", "internal/pool/reserve", "internal/vm/lease"}},
	{from: []string{"internal/observe/explain"}, may: slices.Concat([]string{"api", "driver", pool, timeouts}, parts)},
	{from: []string{"internal/observe/follow"}},
	{from: []string{"internal/observe/rollout/replacements"}, may: []string{"api", budget, timeouts}},
	{from: []string{"internal/observe/rollout"}, may: slices.Concat([]string{"api", "internal/observe/explain", "internal/observe/follow", pool}, parts)},

	// The server of the web page. It has no rules of its own; changes are made by the functions that the command gives it.
	{
		from: []string{"internal/ui"},
		may:  []string{"api", "driver", "internal/lifecycle/drain", "internal/lifecycle/preservation", "internal/connlimit", "internal/observe", "internal/reconcile/messages", pool},
	},

	// The cloud provider for controllers of Kubernetes. Like the driver, it uses only API objects.
	{from: []string{"internal/cloud"}, may: []string{"api", "drivers/vm"}},
	{from: []string{"internal/cloudcontroller"}, may: []string{"api", "internal/cloud", "internal/manager", "internal/reconcile/relist"}},

	// The service for autoscalers. It interprets annotations by the rules of the pool.
	{
		from: []string{"internal/autoscaler"},
		may:  []string{"api", "proto", "driver", "internal/lifecycle/preservation", "internal/reconcile/apierror", "internal/reconcile/fieldindex", "internal/reconcile/relist", "internal/connlimit", pool},
	},

	// The manager's side of the protocol for drivers in other processes.
	{from: []string{"internal/pluginserver"}, may: []string{"api", "proto", "driver", "internal/connlimit", "internal/tracing"}},

	// Local mode: everything that runs next to the controllers on one host.
	{from: []string{"internal/local"}, may: []string{"api", "proto", "internal/reconcile/apierror", "internal/reconcile/flow", "internal/reconcile/messages", "internal/ca", "internal/child", "internal/confine", "internal/connlimit", "internal/loop"}},

	// Packages that combine the others.
	{
		from:  []string{"internal/manager"},
		may:   []string{"api", "config", "proto", "driver", "drivers", "internal"},
		never: []string{"internal/local", "internal/cli", "cmd"},
	},
	{from: []string{"internal/fleet"}, may: []string{"api", "driver", "internal/manager", "internal/observe/metrics"}},
	// A machine controller outside of this repository has the same flags as Millwright's, which are read in one place.
	// It includes neither local mode nor Millwright's drivers; a test in provider checks all linked packages.
	{
		from: []string{"provider"},
		may:  []string{"driver", "internal/cli/args", "internal/cli/conformance", "internal/cli/instance", "internal/cli/manager", "internal/cli/plugin", "internal/cli/program", "internal/pluginserver"},
	},
	{from: []string{"internal/cli"}, may: everything, never: []string{controllers}}, // the manager runs them
	{
		from: []string{"cmd", "test", "bench"},
		may:  everything,
	},

	// Independent programs and modules.
	{from: []string{"guest"}, may: []string{"proto"}, never: []string{"internal"}},
	{from: []string{"compat"}, may: []string{"api", "client", "driver", "provider"}},
	{from: []string{"examples"}, may: []string{"api", "client", "driver", "provider"}, never: []string{"internal"}},
	{from: []string{"examples/mcm-provider"}}, // depends only on MCM
	{from: []string{"controlplane"}},
	{from: []string{"hack/aliases"}},
	{from: []string{"hack/apireference"}},
	{from: []string{"hack/chartreference"}},
	{from: []string{"hack/clireference"}, may: []string{"internal/cli"}},
	{from: []string{"hack/image"}},
	{from: []string{"hack/guards"}},
	{from: []string{"hack/mutate"}},
	{from: []string{"hack/openapi"}},
	{from: []string{"hack/reliability"}},
	{from: []string{"hack/site"}},
	{from: []string{"hack/support"}},
	{from: []string{"hack/record"}, may: []string{"test/support/pty"}},
	{from: []string{"tools"}},
	{from: []string{"internal/layers"}},
}

// testsMay lists what the test files of every layer may import in addition to their rule: the test harness, drivers and
// manifests.
var testsMay = []string{"test", "driver", "config"}
