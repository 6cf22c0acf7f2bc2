package common

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// root is the provider's folder, seen from its test/integration/controller.
var root = filepath.Join("..", "..", "..")

// environment is what the suite works with.
type environment struct {
	// control and target are kubeconfigs.
	control, target    string
	namespace, cluster string
	classes            classes
	// commands of the controllers, by the names of their logs.
	commands map[string]command
	images   images
	// seed: the control cluster is one of Gardener, with classes, controllers and CRDs of its own.
	seed bool
	// keepCRDs: those that the suite installed stay.
	keepCRDs bool
	// virtual: the provider is one without machines, whose classes and CRDs are as they should be.
	virtual bool
	// nodeAgentSecret is the value of a label of all nodes of the suite; empty for none.
	nodeAgentSecret string
}

// classes are where the two MachineClasses come from.
type classes struct {
	// first and second are files. Without them, in a seed, a class of the namespace is copied.
	first, second string
	// tagsAreStrings: the providerSpec has tags as a list of strings, where others have keys and values.
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
			return e, fmt.Errorf("%s is %q, neither true nor false", variable, os.Getenv(variable))
		}
	}
	e.commands = e.toStart()
	return e, e.check()
}

// check returns an error that names the variable which is missing, or does not go with the others.
func (e environment) check() error {
	_, manager := e.commands[managerLog]
	_, machines := e.commands[machinesLog]
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{e.control == "", "CONTROL_KUBECONFIG is required: the kubeconfig of the cluster with the Machines"},
		{e.images.manager != "" && manager || e.images.machines != "" && machines, "MC_COMMAND and MCM_COMMAND: not together with MC_IMAGE_TAG and MCM_IMAGE_TAG"},
		{e.classes.first == "" && !e.seed, "MACHINECLASS_V1 is required: a file with a MachineClass"},
		{e.classes.tagsAreStrings && e.cluster == "", "TAGS_ARE_STRINGS needs TARGET_CLUSTER_NAME, which the tags are made of"},
		{e.seed && manager != machines, "IS_CONTROL_CLUSTER_SEED needs both MC_COMMAND and MCM_COMMAND, or neither, as the seed's controllers have one Deployment"},
	} {
		if rule.broken {
			return errors.New(rule.says)
		}
	}
	return nil
}
