// Package rollout says how the rollout of a MachineDeployment goes, and changes what
// drives it: pause, resume, restart, undo.
//
// It works from another process than the manager, with nothing but API access. All that it
// writes are fields of the deployment that MCM knows as well.
//
//	Read, Follow                    objects → Facts    the parts that read from an API server
//	Look                            Facts → Status     pure; what is waited for, internal/observe/explain finds
//	View, Line                      Status → text      pure
//	Pause, Resume, Restart, Undo    the parts that write
package rollout
