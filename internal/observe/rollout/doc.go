// Package rollout shows and controls the rollout of a MachineDeployment.
//
// It works from another process than the manager, with nothing but API access. All that it
// writes are fields of the deployment that MCM knows as well.
//
//	Read, Follower                  objects → Facts    the parts that read from an API server
//	StatusOf                        Facts → Status     pure; internal/observe/explain finds what is waited for
//	View, Line                      Status → text      pure
//	Pause, Resume, Restart, Undo    the parts that write
package rollout
