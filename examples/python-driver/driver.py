#!/usr/bin/env python3
"""A driver in Python: its "VMs" are files in a directory.

Shows everything that a driver in another process must do. Generate the stubs first:

    python3 -m grpc_tools.protoc -I ../../proto/driver --python_out=. --grpc_python_out=. driver.proto
    python3 driver.py --target unix:///run/millwright/drivers.sock --dir /var/lib/files
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import queue
import random
import secrets
import sys
import threading
import time

import grpc

import driver_pb2 as pb
import driver_pb2_grpc as rpc

KIND = "python"
API_VERSION = "machine.sapcloud.io/v1alpha1"
LIMIT = 16 << 20  # maximum bytes of a message
CLUSTER = "kubernetes.io/cluster/"
OPERATIONS = 10  # maximum number of concurrent operations
FETCH_TIMEOUT = 30  # seconds for a class or a Secret
FIRST_PAUSE, LAST_PAUSE = 0.2, 5  # seconds between two attempts to register
CANCELED, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 1, 3, 5, 6, 12, 13, 14

# Status codes with which a manager rejects a registration permanently.
PERMANENT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
             grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


class Failed(Exception):
    """An error with a code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def check(spec):
    """Validates the fields of a providerSpec that only a creation needs."""
    for field in spec:
        if field not in ("size", "tags"):
            raise Failed(INVALID_ARGUMENT, f"providerSpec.{field}: unknown field")
    if not isinstance(spec.get("size", ""), str):
        raise Failed(INVALID_ARGUMENT, "providerSpec.size: must be a string")


def cluster_of(spec):
    """Returns the name of the cluster in the tags of a providerSpec. All operations need it."""
    if not isinstance(spec, dict):
        raise Failed(INVALID_ARGUMENT, "providerSpec: must be an object")
    tags = spec.get("tags")
    names = [tag[len(CLUSTER):] for tag in tags if tag.startswith(CLUSTER)] if isinstance(tags, dict) else []
    if len(names) != 1 or not names[0]:
        raise Failed(INVALID_ARGUMENT, f"providerSpec.tags: must have exactly one key {CLUSTER}NAME")
    return names[0]


class Files:
    """The provider: each VM is a file whose name is derived from its machine."""

    def __init__(self, directory):
        self.directory = directory
        self.lock = threading.Lock()
        os.makedirs(directory, exist_ok=True)

    def path(self, namespace, name):
        if not name:
            raise Failed(INVALID_ARGUMENT, "the machine has no name")
        key = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()
        return os.path.join(self.directory, key + ".json")

    def find(self, machine, cluster):
        """Returns the VM of a machine: by its ID if that is stored, otherwise by name and cluster."""
        meta, provider_id = machine["metadata"], machine.get("spec", {}).get("providerID")
        vm = read(self.path(meta.get("namespace", ""), meta.get("name", "")))
        if vm is None or (vm["id"] != provider_id if provider_id else vm["cluster"] != cluster):
            raise Failed(NOT_FOUND, f"machine {meta.get('name')} has no VM")
        return vm

    def create(self, machine, cluster, spec):
        meta = machine["metadata"]
        path = self.path(meta.get("namespace", ""), meta.get("name", ""))
        vm = {"id": f"python:///{secrets.token_hex(8)}", "name": meta["name"], "cluster": cluster, "spec": spec}
        with self.lock:
            found = read(path)
            if found is None:
                with open(path + ".new", "w", encoding="utf-8") as file:
                    json.dump(vm, file)
                os.rename(path + ".new", path)  # so that a VM file is never incomplete
                return vm
        if (found["cluster"], found["spec"]) != (cluster, spec):
            raise Failed(ALREADY_EXISTS, f"VM {meta['name']} exists with other parameters")
        return found

    def delete(self, machine, cluster):
        with self.lock:  # so that the VM is not removed or replaced in between
            try:
                vm = self.find(machine, cluster)
            except Failed as failed:
                if failed.code == NOT_FOUND:
                    return
                raise
            os.remove(self.path(machine["metadata"].get("namespace", ""), vm["name"]))

    def list(self, cluster):
        found = {}
        for name in os.listdir(self.directory):
            if name.endswith(".json"):
                vm = read(os.path.join(self.directory, name))
                if vm is not None and vm["cluster"] == cluster:  # None: removed in the meantime
                    found[vm["id"]] = vm["name"]
        return found


def read(path):
    """Returns the VM of a file, or None if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


class Session:
    """One registration with the manager."""

    def __init__(self, stub, files, instance):
        self.stub, self.files, self.instance = stub, files, instance
        self.outgoing = queue.Queue()
        self.registered = False
        self.lock = threading.Lock()  # guards the fields below
        self.classes = {}
        self.running = {}  # operation ID -> event that is set when the operation is canceled

    def run(self):
        """Registers and executes operations until the stream is closed, which raises its error."""
        self.outgoing.put(pb.DriverSide(registration=pb.Registration(
            kind=KIND, api_version=API_VERSION, instance=self.instance, max_operations=OPERATIONS, version="example",
            operations=[pb.OT_CREATE_MACHINE, pb.OT_DELETE_MACHINE, pb.OT_GET_MACHINE_STATUS, pb.OT_LIST_MACHINES])))
        pool = concurrent.futures.ThreadPoolExecutor(OPERATIONS)
        try:
            for message in self.stub.Register(iter(self.outgoing.get, None)):
                if message.HasField("registered"):
                    self.registered = True
                    print("registered", flush=True)
                elif message.HasField("operation"):
                    self.begin(pool, message.operation)
                elif message.HasField("cancel"):
                    self.cancel(message.cancel.operation_id)
        finally:
            with self.lock:
                for canceled in self.running.values():  # no manager waits for them
                    canceled.set()
            self.outgoing.put(None)
            pool.shutdown()

    def begin(self, pool, op):
        """Starts an operation. A duplicate of a running operation is ignored."""
        with self.lock:
            if op.operation_id in self.running:
                return
            canceled = self.running[op.operation_id] = threading.Event()
        pool.submit(self.execute, op, canceled)

    def cancel(self, operation_id):
        with self.lock:
            if operation_id in self.running:  # otherwise, it has completed in the meantime
                self.running[operation_id].set()

    def execute(self, op, canceled):
        result = pb.OperationResult(operation_id=op.operation_id, operation_type=op.operation_type, machine_name=op.machine_name)
        try:
            self.perform(op, result, canceled)
        except Failed as failed:
            result.code, result.message = failed.code, str(failed)
        except grpc.RpcError as error:  # cannot fetch the class or the Secret
            result.code, result.message = UNAVAILABLE, error.details() or error.code().name
        except Exception as error:  # pylint: disable=broad-except
            result.code, result.message = INTERNAL, f"the driver failed: {type(error).__name__}"
        with self.lock:
            del self.running[op.operation_id]
        self.outgoing.put(pb.DriverSide(result=result))

    def perform(self, op, result, canceled):
        spec = self.machine_class(op.machine_class).get("providerSpec", {})
        cluster = cluster_of(spec)
        if op.operation_type == pb.OT_CREATE_MACHINE:
            check(spec)
            self.stub.GetSecret(op.secret, timeout=FETCH_TIMEOUT)  # credentials and user data, which this provider does not use
        if canceled.is_set():  # last check, because the rest is fast
            raise Failed(CANCELED, "the operation was canceled")
        if op.operation_type == pb.OT_LIST_MACHINES:
            result.machine_list.update(self.files.list(cluster))
            return
        machine = json.loads(op.machine)
        if op.operation_type == pb.OT_CREATE_MACHINE:
            vm = self.files.create(machine, cluster, spec)
        elif op.operation_type == pb.OT_DELETE_MACHINE:
            self.files.delete(machine, cluster)
            return
        elif op.operation_type == pb.OT_GET_MACHINE_STATUS:
            vm = self.files.find(machine, cluster)
        else:
            raise Failed(UNIMPLEMENTED, "the driver does not support this operation")
        result.provider_id, result.node_name = vm["id"], vm["name"]

    def machine_class(self, meta):
        """Returns a class, from the cache if the cache has this version."""
        key = (meta.namespace, meta.name)
        with self.lock:
            cached = self.classes.get(key)
        if cached is None or cached[0] != meta.version:
            cached = (meta.version, json.loads(self.stub.GetMachineClass(meta, timeout=FETCH_TIMEOUT).object))
            with self.lock:
                self.classes[key] = cached
        return cached[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="address at which the manager serves drivers, for example unix:///run/millwright/drivers.sock")
    parser.add_argument("--dir", required=True, help="directory of the VMs")
    args = parser.parse_args()
    files, instance, pause = Files(args.dir), secrets.token_hex(16), FIRST_PAUSE
    options = [("grpc.max_receive_message_length", LIMIT), ("grpc.max_send_message_length", LIMIT),
               ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000)]
    while True:
        with grpc.insecure_channel(args.target, options) as channel:
            session = Session(rpc.InfraStub(channel), files, instance)
            try:
                session.run()
            except grpc.RpcError as error:
                print("not connected:", error.code().name, error.details(), file=sys.stderr, flush=True)
                if error.code() in PERMANENT:
                    sys.exit(1)
        if session.registered:
            pause = FIRST_PAUSE
        time.sleep(pause * random.uniform(1, 1.5))
        pause = min(2 * pause, LAST_PAUSE)


if __name__ == "__main__":
    main()
