-- Health of VirtualMachines (vm.metropolis.monogon.dev/v1alpha1).
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "Deleting the VM"}
end
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "Waiting for the VM controller"}
end
local message = "Waiting for the VM controller"
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    if condition.status == "True" then
      return {status = "Healthy", message = condition.message}
    end
    if condition.reason == "Halted" or condition.reason == "Completed" then
      return {status = "Suspended", message = condition.message}
    end
    message = condition.message
  end
end
if status.phase == "Lost" then
  return {status = "Degraded", message = message}
end
return {status = "Progressing", message = message}
