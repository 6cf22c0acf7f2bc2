-- Health of Machines (machine.sapcloud.io/v1alpha1).
local status = obj.status or {}
local phase = (status.currentStatus or {}).phase or ""
local message = (status.lastOperation or {}).description
if message == nil or message == "" then
  message = "Waiting for the manager"
end
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = message}
end
if phase == "Running" then
  return {status = "Healthy", message = message}
end
if phase == "Failed" or phase == "Unknown" or phase == "CrashLoopBackOff" or phase == "InPlaceUpdateFailed" then
  return {status = "Degraded", message = message}
end
return {status = "Progressing", message = message}
