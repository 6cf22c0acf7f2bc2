package apiserver

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRollout_RestartAndUndo replaces all machines without a change of class, and rolls back.
func TestRollout_RestartAndUndo(t *testing.T) {
	tier.All(t)
	c := newCluster(t, oneOld)
	manager := c.manager()
	c.rollout(0, "status pool --timeout 5m", "successfully rolled out: revision 1, 3 machines")
	first := c.machines()
	c.rollout(1, "undo pool", "no revision before the current one")

	manager.Kill() // otherwise the rollout could complete before the command starts
	c.rollout(0, "restart mcd/pool", "machinedeployment.machine.sapcloud.io/pool restarted")
	printed, status := c.onTerminal("status machinedeployment pool --timeout 5m", func() { c.manager() })
	if status != 0 || !strings.Contains(printed, "successfully rolled out: revision 2, 3 machines") {
		t.Fatalf("exit status %d:\n%q", status, printed)
	}
	if updates := regexp.MustCompile(`\x1b\[\d+A\r\x1b\[Kmachine deployment `).FindAllString(printed, -1); len(updates) < 2 {
		t.Errorf("updated in place %d times, want at least 2:\n%q", len(updates), printed)
	}
	for name, machine := range c.machines() {
		if _, old := first[name]; old {
			t.Errorf("machine %s was not replaced", name)
		}
		if machine.Spec.Class.Name != "pool" || machine.Annotations[change.AnnotationRestarted] == "" {
			t.Errorf("machine %s is of class %s, with annotations %v", name, machine.Spec.Class.Name, machine.Annotations)
		}
	}
	c.rollout(0, "history pool", "2 (current)   pool-", "the beginning")
	c.rollout(0, "history pool --revision 2", "# Revision 2 of machine deployment", change.AnnotationRestarted, "name: pool")
	c.rollout(0, "undo pool --to-revision 2", "the template is already that of revision 2")

	c.rollout(0, "undo pool", "pool rolled back to revision 1")
	c.rollout(0, "status pool --timeout 5m", "successfully rolled out: revision 3")
	if c.deployment().Spec.Template.Annotations[change.AnnotationRestarted] != "" {
		t.Error("the template still has the annotation")
	}
	c.rollout(1, "undo pool --to-revision 1", "has no revision 1; it has 2, 3")
	c.rollout(1, "history pool --revision 1", "has no revision 1; it has 2, 3")
	c.rollout(1, "status pool --revision 2", "is rolling out revision 3, not 2")
}

// TestRollout_Paused checks what a paused MachineDeployment rejects, and how a rollout waits for it.
func TestRollout_Paused(t *testing.T) {
	tier.All(t)
	c := newCluster(t)
	c.manager()
	c.rollout(0, "status pool --timeout 5m")
	c.rollout(0, "pause pool", "pool paused")
	c.rollout(1, "pause pool", "is already paused")
	c.rollout(1, "restart pool", `run "millwright rollout resume pool" first`)
	c.rollout(1, "undo pool", `run "millwright rollout resume pool" first`)
	c.rollout(0, "status pool --timeout 5m", "successfully rolled out")

	c.patch(`{"spec":{"template":{"metadata":{"labels":{"more":"labels"}}}}}`)
	c.awaitObserved()
	c.rollout(1, "status pool --timeout 20s", "was not rolled out within 20s: 0 of 3 updated", "the deployment is paused")
	c.rollout(0, "status pool --watch=false", "the deployment is paused")
	watched := program.Start(t, c.arguments("status pool --timeout 5m")...)
	t.Cleanup(watched.Kill)
	c.await(watched, "the deployment is paused")
	c.rollout(0, "resume pool", "pool resumed")
	c.rollout(1, "resume pool", "is not paused")
	if err := watched.Wait(); err != nil {
		t.Errorf("ended with %v:\n%s", err, watched.Output.String())
	}
	c.await(watched, "successfully rolled out: revision 2")
}

// TestRollout_ProgressDeadlineExceeded checks that a rollout without progress stops the watch, and reports why.
func TestRollout_ProgressDeadlineExceeded(t *testing.T) {
	tier.All(t)
	c := newCluster(t, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "missing" })
	c.manager()
	c.patch(`{"spec":{"progressDeadlineSeconds":3}}`)
	c.rollout(1, "status pool --timeout 5m", "exceeded its progress deadline of 3s", `MachineClass "missing" not found`)
}

// TestRollout_NothingToAsk checks the output without a MachineDeployment, manager or API server.
func TestRollout_NothingToAsk(t *testing.T) {
	tier.All(t)
	c := newCluster(t)
	for _, command := range []string{"status", "history", "undo", "pause", "resume", "restart"} {
		c.rollout(1, command+" other", `machine deployment "other" not found in namespace "`+c.Namespace+`"`)
	}
	c.rollout(1, "status pool --timeout 20s", "the manager has not processed the latest change yet")
	c.rollout(1, "status pool --context other", `context "other" does not exist`)
	c.rollout(1, "status pool -n elsewhere", `in namespace "elsewhere"`)

	watched := program.Start(t, c.arguments("status pool")...)
	t.Cleanup(watched.Kill)
	c.await(watched, "the manager has not processed the latest change yet")
	c.do(c.Client.Delete(t.Context(), c.deployment()))
	if err := watched.Wait(); err == nil || watched.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	c.await(watched, "was deleted")
}

// TestRollout_UndoWithoutManager checks that the request is written, and that the missing manager is reported.
func TestRollout_UndoWithoutManager(t *testing.T) {
	tier.All(t)
	c := newCluster(t)
	for class, revision := range map[string]string{"pool": "2", "before": "1"} {
		set := &v1alpha1.MachineSet{}
		set.Namespace, set.Name = c.Namespace, "pool-"+class
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: revision}
		set.OwnerReferences = owner(c.deployment())
		set.Spec.Selector = c.deployment().Spec.Selector
		set.Spec.Template = c.deployment().Spec.Template
		set.Spec.Template.Spec.Class.Name = class
		c.do(c.Client.Create(t.Context(), set))
	}
	c.rollout(1, "undo pool --timeout 1s", "was not rolled back", "revision 1", "check that a manager is running")
	if rollback := c.deployment().Spec.RollbackTo; rollback == nil || rollback.Revision != 1 {
		t.Errorf("spec.rollbackTo is %v", rollback)
	}
	c.rollout(0, "undo pool --timeout 0", "rollback to revision 1 requested")
}

// TestRollout_InterruptStopsWatchOnly checks that Ctrl-C stops the watch, and not the rollout.
func TestRollout_InterruptStopsWatchOnly(t *testing.T) {
	tier.All(t)
	c := newCluster(t)
	watched := program.Start(t, c.arguments("status pool")...)
	t.Cleanup(watched.Kill)
	c.await(watched, "the manager has not processed the latest change yet")
	c.do(syscall.Kill(watched.PID(), syscall.SIGINT))
	if err := watched.Wait(); err == nil || watched.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	c.await(watched, "of machine deployment "+c.Namespace+"/pool continues")
}
