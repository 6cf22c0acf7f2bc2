package chart

import (
	"os"
	"path/filepath"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

// TestArgoCD_JudgesHealth runs the health checks in the interpreter that Argo CD uses, on objects in each state.
func TestArgoCD_JudgesHealth(t *testing.T) {
	for name, tc := range map[string]struct{ script, object, status, message string }{
		"new Machine":       {"machine", `metadata: {name: m}`, "Progressing", "Waiting for the manager"},
		"joining Machine":   {"machine", `{metadata: {name: m}, status: {currentStatus: {phase: Pending}, lastOperation: {description: Creating}}}`, "Progressing", "Creating"},
		"Machine":           {"machine", `{metadata: {name: m}, status: {currentStatus: {phase: Running}, lastOperation: {description: Joined}}}`, "Healthy", "Joined"},
		"unhealthy Machine": {"machine", `{metadata: {name: m}, status: {currentStatus: {phase: Unknown}, lastOperation: {description: Not ready}}}`, "Degraded", "Not ready"},
		"Machine without capacity": {
			"machine", `{metadata: {name: m}, status: {currentStatus: {phase: CrashLoopBackOff}, lastOperation: {description: No capacity}}}`, "Degraded", "No capacity",
		},
		"deleted Machine": {
			"machine", `{metadata: {name: m, deletionTimestamp: "2026-11-29T20:00:00Z"}, status: {currentStatus: {phase: Running}, lastOperation: {description: Draining}}}`,
			"Progressing", "Draining",
		},

		"new set":     {"machineset", `{metadata: {generation: 1}, spec: {replicas: 2}}`, "Progressing", "Waiting for the manager"},
		"growing set": {"machineset", `{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, availableReplicas: 1}}`, "Progressing", "1 of 2 machines are available"},
		"set":         {"machineset", `{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, availableReplicas: 2}}`, "Healthy", "2 of 2 machines are available"},
		"shrinking set": {
			"machineset", `{metadata: {generation: 2}, spec: {replicas: 0}, status: {observedGeneration: 2, replicas: 1, availableReplicas: 1}}`, "Progressing", "1 of 0 machines are available",
		},
		"empty set":   {"machineset", `{metadata: {generation: 1}, spec: {replicas: 0}, status: {observedGeneration: 1}}`, "Healthy", "0 of 0 machines are available"},
		"failing set": {"machineset", `{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, machineSetCondition: [{type: ReplicaFailure, status: "True", message: Denied}]}}`, "Degraded", "Denied"},
		"deleted set": {"machineset", `{metadata: {deletionTimestamp: "2026-11-29T20:00:00Z"}, spec: {replicas: 2}}`, "Progressing", "Deleting machines"},

		"changed deployment": {"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 1}, status: {observedGeneration: 1}}`, "Progressing", "Waiting for the manager"},
		"rollout": {
			"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 3}, status: {observedGeneration: 2, replicas: 4, updatedReplicas: 1, availableReplicas: 3}}`,
			"Progressing", "3 of 3 machines are available, 1 are updated",
		},
		"end of a rollout": {
			"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 3}, status: {observedGeneration: 2, replicas: 4, updatedReplicas: 3, availableReplicas: 3}}`,
			"Progressing", "3 of 3 machines are available, 3 are updated",
		},
		"paused rollout": {
			"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 3, paused: true}, status: {observedGeneration: 2, replicas: 4, updatedReplicas: 1, availableReplicas: 3}}`,
			"Suspended", "Paused: 3 of 3 machines are available, 1 are updated",
		},
		"rollout without progress": {
			"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 3}, status: {observedGeneration: 2, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "False", message: No progress}]}}`,
			"Degraded", "No progress",
		},
		"deployment": {
			"machinedeployment", `{metadata: {generation: 2}, spec: {replicas: 3}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 3, availableReplicas: 3, conditions: [{type: Progressing, status: "True"}]}}`,
			"Healthy", "3 of 3 machines are available, 3 are updated",
		},

		"new VM":      {"virtualmachine", `{metadata: {generation: 1}}`, "Progressing", "Waiting for the VM controller"},
		"starting VM": {"virtualmachine", `{metadata: {generation: 1}, status: {observedGeneration: 1, phase: Creating, conditions: [{type: Ready, status: "False", message: Copying}]}}`, "Progressing", "Copying"},
		"VM":          {"virtualmachine", `{metadata: {generation: 1}, status: {observedGeneration: 1, phase: Running, conditions: [{type: Ready, status: "True", message: Runs}]}}`, "Healthy", "Runs"},
		"ended VM":    {"virtualmachine", `{metadata: {generation: 1}, status: {observedGeneration: 1, phase: Stopped, conditions: [{type: Ready, status: "False", reason: Completed, message: Ended}]}}`, "Suspended", "Ended"},
		"lost VM":     {"virtualmachine", `{metadata: {generation: 1}, status: {observedGeneration: 1, phase: Lost, conditions: [{type: Ready, status: "Unknown", message: No response}]}}`, "Degraded", "No response"},
	} {
		t.Run(name, func(t *testing.T) {
			status, message := judge(t, tc.script, tc.object)
			if status != tc.status || message != tc.message {
				t.Errorf("%s: %q, want %s: %q", status, message, tc.status, tc.message)
			}
		})
	}
}

// judge returns the health of an object in YAML.
func judge(t *testing.T, script, object string) (status, message string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("../../../config/argocd", script+".lua"))
	if err != nil {
		t.Fatal(err)
	}
	var decoded any
	if err := yaml.Unmarshal([]byte(object), &decoded); err != nil {
		t.Fatal(err)
	}
	// As in Argo CD, scripts have only the basic functions.
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	lua.OpenBase(state)
	state.SetGlobal("obj", valueOf(state, decoded))
	if err := state.DoString(string(source)); err != nil {
		t.Fatal(err)
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %s", state.Get(-1))
	}
	return health.RawGetString("status").String(), health.RawGetString("message").String()
}

// valueOf returns a decoded value for Lua.
func valueOf(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case string:
		return lua.LString(value)
	case float64:
		return lua.LNumber(value)
	case bool:
		return lua.LBool(value)
	case []any:
		list := state.NewTable()
		for _, element := range value {
			list.Append(valueOf(state, element))
		}
		return list
	case map[string]any:
		table := state.NewTable()
		for key, element := range value {
			table.RawSetString(key, valueOf(state, element))
		}
		return table
	default:
		return lua.LNil
	}
}
