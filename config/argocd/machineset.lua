-- Health of MachineSets (machine.sapcloud.io/v1alpha1).
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "Deleting machines"}
end
-- While machines cannot be created, the manager does not set observedGeneration.
for _, condition in ipairs(status.machineSetCondition or {}) do
  if (condition.type == "ReplicaFailure" or condition.type == "Frozen") and condition.status == "True" then
    return {status = "Degraded", message = condition.message}
  end
end
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "Waiting for the manager"}
end
local desired, available = obj.spec.replicas or 0, status.availableReplicas or 0
local message = available .. " of " .. desired .. " machines are available"
if available < desired or (status.replicas or 0) > desired then
  return {status = "Progressing", message = message}
end
return {status = "Healthy", message = message}
