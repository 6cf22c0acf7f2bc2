-- Health of MachineDeployments (machine.sapcloud.io/v1alpha1).
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "Deleting machines"}
end
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "Waiting for the manager"}
end
for _, condition in ipairs(status.conditions or {}) do
  local failed = (condition.type == "ReplicaFailure" or condition.type == "Frozen") and condition.status == "True"
  if failed or condition.type == "Progressing" and condition.status == "False" then
    return {status = "Degraded", message = condition.message}
  end
end
local desired, updated, available = obj.spec.replicas or 0, status.updatedReplicas or 0, status.availableReplicas or 0
local message = available .. " of " .. desired .. " machines are available, " .. updated .. " are updated"
if obj.spec.paused then
  return {status = "Suspended", message = "Paused: " .. message}
end
if updated < desired or available < desired or (status.replicas or 0) > desired then
  return {status = "Progressing", message = message}
end
return {status = "Healthy", message = message}
