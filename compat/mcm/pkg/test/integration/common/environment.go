package common

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// root is the provider's directory, relative to its test/integration/controller.
var root = filepath.Join("..", "..", "..")

// environment contains the settings of the suite.
type environment struct {
	// control and target are paths of kubeconfigs.
	control, target    string
	namespace, cluster string
	classes            classes
	// commands of the controllers, by the names of their logs.
	commands map[string]command
	images   images
	// seed is true if the control cluster is a Gardener seed, which has its own classes, controllers and CRDs.
	seed bool
	// keepCRDs is true if the CRDs that the suite installed are not removed.
	keepCRDs bool
	// virtual is true if the provider has no real machines and its classes and CRDs need no changes.
	virtual bool
	// nodeAgentSecret is the value of a label of all nodes of the suite. Optional.
	nodeAgentSecret string
}

// classes are the sources of the two MachineClasses.
type classes struct {
	// first and second are files. Without them, in a seed, a class of the namespace is copied.
	first, second string
	// tagsAreStrings is true if the tags in the providerSpec are a list of strings instead of keys and values.
	tagsAreStrings bool
}

func fromEnvironment() (environment, error) {
	e := environment{
		control:   os.Getenv("CONTROL_KUBECONFIG"),
		namespace: cmp.Or(os.Getenv("CONTROL_CLUSTER_NAMESPACE"), "default"),
		cluster:   os.Getenv("TARGET_CLUSTER_NAME"),
		classes:   classes{first: os.Getenv("MACHINECLASS_V1")},
		images: images{
			deployment: cmp.Or(os.Getenv("MACHINE_CONTROLLER_MANAGER_DEPLOYMENT_NAME"), managerContainer),
			manager:    os.Getenv("MCM_IMAGE_TAG"), machines: os.Getenv("MC_IMAGE_TAG"),
		},
		nodeAgentSecret: os.Getenv("GNA_SECRET_NAME"),
	}
	e.target = cmp.Or(os.Getenv("TARGET_KUBECONFIG"), e.control)
	e.classes.second = cmp.Or(os.Getenv("MACHINECLASS_V2"), e.classes.first)
	for variable, value := range map[string]*bool{
		"IS_CONTROL_CLUSTER_SEED": &e.seed, "IS_VIRTUAL_PROVIDER": &e.virtual,
		"PRESERVE_CRD_AT_END": &e.keepCRDs, "TAGS_ARE_STRINGS": &e.classes.tagsAreStrings,
	} {
		var err error
		if *value, err = strconv.ParseBool(cmp.Or(os.Getenv(variable), "false")); err != nil {
			return e, fmt.Errorf("invalid value %[2]q of %[1]s; use true or false", variable, os.Getenv(variable))
		}
	}
	e.commands = e.toStart()
	return e, e.check()
}

// check returns an error that names the variable that is missing or conflicts with others.
func (e environment) check() error {
	_, manager := e.commands[managerLog]
	_, machines := e.commands[machinesLog]
	for _, rule := range []struct {
		broken  bool
		message string
	}{
		{e.control == "", "CONTROL_KUBECONFIG is not set; set it to the kubeconfig of the cluster with the Machines"},
		{e.images.manager != "" && manager || e.images.machines != "" && machines, "MACHINE_CONTROLLER_COMMAND and MACHINE_CONTROLLER_MANAGER_COMMAND cannot be used with MC_IMAGE_TAG and MCM_IMAGE_TAG"},
		{e.classes.first == "" && !e.seed, "MACHINECLASS_V1 is not set; set it to a file with a MachineClass"},
		{e.classes.tagsAreStrings && e.cluster == "", "TAGS_ARE_STRINGS requires TARGET_CLUSTER_NAME, which is part of the tags"},
		{e.seed && manager != machines, "IS_CONTROL_CLUSTER_SEED requires both MACHINE_CONTROLLER_COMMAND and MACHINE_CONTROLLER_MANAGER_COMMAND or neither, because the seed's controllers are in one Deployment"},
	} {
		if rule.broken {
			return errors.New(rule.message)
		}
	}
	return nil
}
