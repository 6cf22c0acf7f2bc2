// Package crash explores the state that a crash of the manager at any point leaves behind.
//
// A scenario runs once, and every write to the API and every call to the driver is recorded as a point. Then the
// scenario runs again for each of these points, and the manager is killed there. A new manager must reach the
// desired state, and must leave nothing behind when the desired state is removed. Rules about intermediate
// states, such as the bounds of a rolling update, are checked against every state that a watch can have shown.
//
// Some scenarios are about MillwrightMachines. They perform the operations of the core of Cluster API, which is
// not installed.
//
// Most scenarios run in one cluster. Scenarios that take a different course in other setups, because writes to
// two clusters can be distinguished or nodes are missing, also run there.
package crash
