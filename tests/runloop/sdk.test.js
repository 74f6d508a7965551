// The JavaScript SDK against the server in RUNLOOP_BASE_URL, with HTTP/2 from the first byte, which is its default.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { BadRequestError, NotFoundError, Runloop, RunloopSDK, toFile } from '@runloop/api-client'

const sdk = new RunloopSDK()
let box
before(async () => {
  box = await sdk.devbox.create({ name: 'js', metadata: { by: 'js' } })
})
after(async () => {
  await box?.shutdown()
})

test('create, execute, output, shutdown', async () => {
  const own = await sdk.devbox.create({ environment_variables: { A: '1' } })
  const result = await own.cmd.exec('echo $A; echo no >&2; exit 3')
  assert.deepEqual([await result.stdout(), await result.stderr(), result.exitCode], ['1\n', 'no\n', 3])
  assert.equal((await own.getInfo()).status, 'running')
  assert.equal((await own.shutdown()).status, 'shutdown')
  assert.equal((await own.getInfo()).status, 'shutdown')
})

test('commands', async () => {
  const slow = await box.cmd.exec('sleep 0.5; echo slow')
  assert.equal(await slow.stdout(), 'slow\n')
  const seen = []
  await box.cmd.exec('echo 1; sleep 0.1; echo 2', { stdout: (line) => seen.push(line) })
  assert.equal(seen.join('').replaceAll('\n', ''), '12')
  const execution = await box.cmd.execAsync('sleep 600')
  assert.equal((await execution.getState()).status, 'running')
  await execution.kill()
  assert.equal((await execution.result()).exitCode, 137)
})

test('a named shell keeps its state', async () => {
  const shell = box.shell('main')
  await shell.exec('cd /tmp && export A=b')
  assert.equal(await (await shell.exec('echo $A in $PWD')).stdout(), 'b in /tmp\n')
})

test('files', async () => {
  await box.file.write({ file_path: 'a', contents: 'text é' })
  assert.equal(await box.file.read({ file_path: 'a' }), 'text é')
  const content = Buffer.alloc(300_000, 7)
  // Also with the file before its path.
  await box.file.upload({ file: await toFile(content, 'b'), path: '/tmp/b' })
  const down = await (await box.file.download({ path: '/tmp/b' })).arrayBuffer()
  assert.equal(Buffer.compare(Buffer.from(down), content), 0)
  await assert.rejects(box.file.read({ file_path: 'none' }), NotFoundError)
})

test('suspend and resume', async () => {
  const own = await sdk.devbox.create()
  await own.file.write({ file_path: 'kept', contents: 'x' })
  await own.suspend()
  await own.awaitSuspended()
  await assert.rejects(own.cmd.exec('true'), BadRequestError)
  await own.resume()
  await own.awaitRunning()
  assert.equal(await own.file.read({ file_path: 'kept' }), 'x')
  await own.keepAlive()
  await own.shutdown()
})

test('lists', async () => {
  const api = new Runloop()
  const seen = []
  for await (const item of api.devboxes.list({ limit: 1 })) seen.push(item.id)
  assert.ok(seen.includes(box.id))
})

test('policies, secrets and gateways', async () => {
  const client = new Runloop()
  const policy = await client.networkPolicies.create({ name: 'js', allowed_hostnames: ['api.example.com'] })
  const secret = await client.secrets.create({ name: `JS_${Date.now()}`, value: 'a value of nobody' })
  const gateway = await client.gatewayConfigs.create({ name: 'js', endpoint: 'https://llm.example.com', auth_mechanism: { type: 'bearer' } })
  await assert.rejects(sdk.devbox.create({ secrets: { TOKEN: secret.name } }), BadRequestError)
  const own = await sdk.devbox.create({
    secrets: { TOKEN: secret.name },
    gateways: { LLM: { gateway: gateway.id, secret: secret.id } },
    launch_parameters: { network_policy_id: policy.id },
  })
  const shown = await (await own.cmd.exec('printf "%s %s" $LLM_URL $TOKEN')).stdout()
  assert.match(shown, /^https:\/\/llm\.example\.com atoll_secret_/)
  await own.shutdown()
  await client.gatewayConfigs.delete(gateway.id)
  await client.secrets.delete(secret.name)
  assert.equal((await client.networkPolicies.delete(policy.id)).id, policy.id)
  await assert.rejects(client.networkPolicies.retrieve(policy.id), NotFoundError)
})

test('agents', async () => {
  const agent = await sdk.agent.create({ name: 'js', source: { type: 'npm', npm: { package_name: '@scope/bot' } } })
  assert.equal((await agent.getInfo()).source.npm.package_name, '@scope/bot')
  assert.ok((await sdk.agent.list({ name: 'js' })).some(({ id }) => id === agent.id))
})
