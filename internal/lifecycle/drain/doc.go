// Package drain empties a node: which pods leave it, in which order, and what is awaited
// in between.
//
// A Drainer is asked once per pass of whoever takes a node away. It looks at the pods
// that are there, starts the evictions that may start now, and says what it waits for.
// It never blocks. What it remembers (attempts, waits for volumes) may be lost at any
// time: a restart begins those waits again, while the deadline, which counts from a time
// that the caller keeps, goes on. Waits for volumes to appear on another node are not
// begun again for pods that are gone.
//
// # Which pods
//
// All pods of the node, apart from mirror pods and those of DaemonSets. Finished pods
// leave too, and count as pods without volumes: nothing of theirs is mounted. Pods
// without claims leave at the same time. Pods with claims leave by priority, highest
// first, one after another (Serial) or at the same time unless they share a volume
// (Independent). The next one leaves when the volumes of the last one are detached from
// the node and attached to another, or when the time for that is over. Volumes that
// several pods of the node use, or that may be attached to several nodes, are not awaited.
//
// A PodDisruptionBudget is gone around only when the drain is forced, when its deadline
// has passed, or when a pod's evictions were refused too often. The Report says so.
//
// # What the caller has to watch
//
// A Report's Wait is for time alone. Everything else has to bring a pass by an event, in
// the target cluster:
//
//   - Pods, by spec.nodeName: [PodChanges]
//   - Nodes, when status.volumesAttached changes: [VolumesDiffer]
//   - VolumeAttachments: those of the node (for [Drainer.DeleteAttachments]), and those of
//     other nodes, which concern whichever drain [Drainer.Awaiting] names
//   - PodDisruptionBudgets, which concern whichever drain [Drainer.Refused] names
//   - the end of evictions, through Options.Wake, and in the control cluster the Machine
//
// PersistentVolumes and claims are read through the cache and need no watch. The cache
// must have the indexes of [AddIndexes], and may keep of a Pod what [StripPod] leaves. It
// must be complete: pods that it does not show are taken for gone.
package drain
