"""What the store computes itself, so that no other gateway comes in between. Times are the store's own."""

ANNOUNCE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], name)
  redis.call('HDEL', KEYS[2], name)
end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return redis.call('HGETALL', KEYS[2])
"""
"""KEYS: times, records. ARGV: name, record, ttl_ms, keep_ms."""

DRAW = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local out = {}
for i = 1, #KEYS do
  local b = (i - 1) * 5
  local per_s, most = tonumber(ARGV[b + 1]) / 60, tonumber(ARGV[b + 2])
  local returned, needed, wanted = tonumber(ARGV[b + 3]), tonumber(ARGV[b + 4]), tonumber(ARGV[b + 5])
  local saved = redis.call('HMGET', KEYS[i], 'level', 'at')
  local level = most
  if saved[1] then
    level = math.min(most, tonumber(saved[1]) + math.max(0, now - tonumber(saved[2])) * per_s)
  end
  level = math.min(most, level + returned)
  local amount, wait = 0, 0
  if level >= needed then
    amount = math.max(0, math.min(wanted, level))
  else
    wait = (needed - level) / per_s
  end
  level = level - amount
  redis.call('HSET', KEYS[i], 'level', string.format('%.6f', level), 'at', string.format('%.6f', now))
  redis.call('PEXPIRE', KEYS[i], math.ceil(math.min(86400, math.max(60, (most - level) / per_s)) * 1000))
  out[#out + 1] = string.format('%.6f', amount)
  out[#out + 1] = string.format('%.6f', wait)
end
return out
"""
"""KEYS: one bucket per ask. ARGV: per_minute, most, returned, needed, wanted of each."""

HOLD = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local me, out = ARGV[1], {}
for i = 2, #KEYS do
  local b = (i - 2) * 3 + 1
  local most, using, wanted = tonumber(ARGV[b + 1]), tonumber(ARGV[b + 2]), tonumber(ARGV[b + 3])
  local held, others = redis.call('HGETALL', KEYS[i]), 0
  for j = 1, #held, 2 do
    if held[j] ~= me then
      local until_ms = redis.call('ZSCORE', KEYS[1], held[j])
      if until_ms and tonumber(until_ms) > now then
        others = others + tonumber(held[j + 1])
      else
        redis.call('HDEL', KEYS[i], held[j])
      end
    end
  end
  local mine = math.max(using, math.min(wanted, most - others), 0)
  if mine > 0 then
    redis.call('HSET', KEYS[i], me, mine)
    redis.call('PEXPIRE', KEYS[i], 60000)
  else
    redis.call('HDEL', KEYS[i], me)
  end
  out[#out + 1] = mine
end
return out
"""
"""KEYS: times of announcements, then the holders of each. ARGV: name, then most, using, wanted of each."""

PUBLISH = """
local t = redis.call('TIME')
local oldest = t[1] * 1000 + math.floor(t[2] / 1000) - tonumber(ARGV[3])
local most, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local position = redis.call('XADD', KEYS[1], '*', 'by', ARGV[1], 'data', ARGV[2])
local bytes = redis.call('INCRBY', KEYS[2], #ARGV[2])
local length = redis.call('XLEN', KEYS[1])
while length > 1 do
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if length <= most and bytes <= most_bytes and tonumber(string.match(first[1], '^%d+')) >= oldest then
    break
  end
  redis.call('XDEL', KEYS[1], first[1])
  bytes = redis.call('DECRBY', KEYS[2], #first[2][4])
  length = length - 1
end
if length == 1 then
  redis.call('SET', KEYS[2], #ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return position
"""
"""KEYS: entries of a topic, bytes of their payloads. ARGV: by, payload, ttl_ms, how many entries and bytes at most.

A server that is short of memory may drop one of the keys without the other: the bytes are counted anew from one entry.
"""
