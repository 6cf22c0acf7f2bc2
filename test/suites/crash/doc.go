// Package crash explores what a manager's death at any point leaves behind.
//
// A scenario is played once, and every write to the API and every call to the driver is
// recorded. Then it is played again for each of these points, and the manager is killed
// there; a new one has to reach what was declared, and to leave nothing when that is
// taken away. What may exist on the way there, such as the bounds of a rolling update, is
// held against every state that a watch can have shown.
//
// Some scenarios are about MillwrightMachines. They do themselves what the core of Cluster API
// would, which is not there.
//
// Most scenarios are played in one cluster. Those that take another way in others, since
// writes to two clusters can be told apart or nodes are missing, are played there too.
package crash
