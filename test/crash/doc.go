// Package crash explores what a manager's death at any point leaves behind.
//
// A scenario is played once, and every write to the API and every call to the driver is
// recorded. Then it is played again for each of these points, and the manager is killed
// there; a new one has to reach what was declared, and to leave nothing when that is
// taken away.
package crash
