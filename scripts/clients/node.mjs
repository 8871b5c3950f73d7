// Assertions of ioredis and node-redis: node.mjs CLIENT PORT, in a folder whose node_modules has them.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const [name, port] = [process.argv[2], Number(process.argv[3])]
const require = createRequire(process.cwd() + '/')

// Both as one: `call` sends words and returns the reply.
async function connect(protocol, database) {
  if (name === 'ioredis') {
    const { Redis } = require('ioredis')
    const client = new Redis({ port, db: database, protocol, maxRetriesPerRequest: 0 })
    await client.ping()
    return {
      call: (...words) => client.call(...words),
      pipeline: async commands => (await client.pipeline(commands).exec()).map(([error, reply]) => error ?? reply),
      scan: async match => {
        const found = []
        for await (const keys of client.scanStream({ match, count: 17 })) found.push(...keys)
        return found
      },
      end: () => client.quit()
    }
  }
  const { createClient } = require('redis')
  const client = await createClient({ socket: { port }, database, RESP: protocol }).connect()
  return {
    call: (...words) => client.sendCommand(words.map(String)),
    pipeline: commands => Promise.all(commands.map(words => client.sendCommand(words.map(String)))),
    scan: async match => {
      const found = []
      for await (const keys of client.scanIterator({ MATCH: match, COUNT: 17 })) found.push(...[keys].flat())
      return found
    },
    end: () => client.close()
  }
}

const text = reply => reply?.toString()

for (const protocol of [2, 3]) {
  const client = await connect(protocol, 1)
  const call = client.call
  assert.equal(text(await call('FLUSHDB')), 'OK')
  assert.equal(await call('GET', 'a'), null)
  assert.equal(text(await call('SET', 'a', 'x\r\ny')), 'OK')
  assert.equal(text(await call('GET', 'a')), 'x\r\ny')
  assert.equal(await call('SET', 'a', '1', 'NX'), null)
  assert.equal(text(await call('SET', 'a', '1', 'XX', 'GET')), 'x\r\ny')
  assert.equal(await call('INCR', 'a'), 2)
  assert.equal(await call('INCRBY', 'a', '40'), 42)
  assert.equal(await call('APPEND', 'a', '!'), 3)
  assert.equal(await call('STRLEN', 'a'), 3)
  await assert.rejects(call('INCR', 'a'), /value is not an integer or out of range/)
  await assert.rejects(call('GET'), /wrong number of arguments for 'get' command/)
  assert.equal(text(await call('MSET', 'b', '1', 'c', '2')), 'OK')
  assert.deepEqual((await call('MGET', 'b', 'none', 'c')).map(text), ['1', undefined, '2'])
  assert.equal(await call('EXISTS', 'b', 'b', 'none'), 2)
  assert.equal(await call('DEL', 'a', 'b', 'c', 'none'), 3)
  const sets = Array.from({ length: 500 }, (_, n) => ['set', `key:${String(n).padStart(4, '0')}`, String(n)])
  assert.ok((await client.pipeline(sets)).every(reply => text(reply) === 'OK'))
  const gets = await client.pipeline(sets.map(([, key]) => ['get', key]))
  assert.deepEqual(gets.map(text), sets.map(([, , value]) => value))
  const found = new Set((await client.scan('key:*')).map(text))
  assert.equal(found.size, 500)
  assert.equal((await call('KEYS', 'key:00*')).length, 100)
  assert.equal(await call('DBSIZE'), 500)
  // The most that a table of records takes.
  const large = 'v'.repeat((1 << 20) - 1)
  assert.equal(text(await call('SET', 'large', large)), 'OK')
  assert.equal(text(await call('GET', 'large')), large)
  const other = await connect(protocol, 0)
  assert.equal(await other.call('GET', 'large'), null)
  assert.equal(text(await other.call('ECHO', 'x')), 'x')
  assert.match(text(await other.call('INFO', 'server')), /redis_version:/)
  await other.end()
  assert.equal(text(await call('FLUSHDB')), 'OK')
  await client.end()
}
