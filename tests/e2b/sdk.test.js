// The JavaScript SDK against the server in E2B_API_URL: the checks of the Python tests, more briefly.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import * as e2b from 'e2b'
import { CommandExitError, FileType, FilesystemEventType, NotFoundError, Sandbox } from 'e2b'

// Older clients do not have both.
const { Secret, Volume } = e2b

let box
before(async () => {
  box = await Sandbox.create({ timeoutMs: 300_000, metadata: { by: 'js' } })
})
after(async () => {
  await box?.kill()
})

async function until(what) {
  for (let n = 0; n < 400; n++) {
    const got = await what()
    if (got) return got
    await new Promise((done) => setTimeout(done, 50))
  }
  assert.fail('it did not come to be')
}

test('lives', async () => {
  const own = await Sandbox.create('base', { timeoutMs: 60_000, envs: { A: '1' } })
  assert.equal((await own.commands.run('echo $A')).stdout, '1\n')
  assert.equal(await own.isRunning(), true)
  const info = await own.getInfo()
  assert.equal(info.sandboxId, own.sandboxId)
  const again = await Sandbox.connect(own.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
  const listed = Sandbox.list({ query: { metadata: { by: 'js' } } })
  assert.deepEqual((await listed.nextItems()).map((item) => item.sandboxId), [box.sandboxId])
  await own.setTimeout(120_000)
  assert.equal(await own.kill(), true)
  assert.equal(await own.isRunning(), false)
  assert.equal(await Sandbox.kill(own.sandboxId), false)
})

test('commands', async () => {
  const out = []
  const run = await box.commands.run('echo out; echo err >&2', { onStdout: (text) => out.push(text) })
  assert.deepEqual([run.stdout, run.stderr, run.exitCode, out.join('')], ['out\n', 'err\n', 0, 'out\n'])
  await assert.rejects(box.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(box.commands.run('sleep 100', { timeoutMs: 1000 }), { name: 'TimeoutError' })
  await assert.rejects(box.commands.run('true', { cwd: '/no/such' }), /does not exist/)
  assert.equal((await box.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
  const cat = await box.commands.run('cat', { background: true, stdin: true })
  await box.commands.sendStdin(cat.pid, 'ü')
  await box.commands.closeStdin?.(cat.pid)
  assert.ok((await box.commands.list()).every((process) => process.pid > 0))
  if (box.commands.closeStdin) assert.equal((await cat.wait()).stdout, 'ü')
  else assert.equal(await cat.kill(), true)
  const late = await box.commands.run('sleep 0.5; echo late', { background: true })
  await late.disconnect()
  assert.equal((await (await box.commands.connect(late.pid)).wait()).stdout, 'late\n')
  assert.equal(await box.commands.kill(late.pid), false)
})

test('files', async () => {
  await box.files.write('a/b.txt', 'text ü')
  assert.equal(await box.files.read('a/b.txt'), 'text ü')
  assert.equal(Buffer.from(await box.files.read('a/b.txt', { format: 'bytes' })).toString(), 'text ü')
  await box.files.write([{ path: 'm1', data: '1' }, { path: '/tmp/m2', data: '2' }])
  assert.equal(await box.files.read('/tmp/m2'), '2')
  assert.equal(await box.files.exists('none'), false)
  await assert.rejects(box.files.read('none'), (error) => error instanceof NotFoundError)
  assert.equal(await box.files.makeDir('d'), true)
  assert.equal(await box.files.makeDir('d'), false)
  const entry = await box.files.getInfo('a/b.txt')
  assert.deepEqual([entry.type, entry.size, entry.mode], [FileType.FILE, 7, 0o644])
  await box.files.rename('a/b.txt', 'a/c.txt')
  assert.deepEqual((await box.files.list('a')).map((entry) => entry.name), ['c.txt'])
  await box.files.remove('a')
  assert.equal(await box.files.exists('a'), false)
})

test('watching', async () => {
  await box.files.makeDir('w')
  const events = []
  const watch = await box.files.watchDir('w', (event) => events.push(event))
  await box.files.write('w/f', 'x')
  await until(() => events.some((event) => event.type === FilesystemEventType.WRITE))
  assert.equal(events[0].type, FilesystemEventType.CREATE)
  assert.ok(events.every((event) => event.name === 'f'))
  await watch.stop()
})

test('terminals', async () => {
  let text = ''
  const decoder = new TextDecoder()
  const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (text += decoder.decode(data)) })
  await box.pty.sendInput(terminal.pid, new TextEncoder().encode('echo a-$TERM; exit\n'))
  await terminal.wait()
  assert.match(text, /a-xterm-256color/)
})

test('signed addresses', async () => {
  await box.files.write('signed', 'signed')
  const answer = await fetch(await box.downloadUrl('signed'))
  assert.deepEqual([answer.status, await answer.text()], [200, 'signed'])
})

test('a pause and what comes after', async () => {
  const own = await Sandbox.create({ timeoutMs: 60_000 })
  await own.files.write('kept', 'kept')
  const pause = own.pause ?? own.betaPause
  await pause.call(own)
  assert.equal(await own.isRunning(), false)
  const again = await Sandbox.connect(own.sandboxId)
  assert.equal(await again.files.read('kept'), 'kept')
  await again.kill()
})

if (Volume) {
  test('volumes', async () => {
    const volume = await Volume.create(`js_${Date.now()}`)
    const mounted = await Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/v': volume } })
    try {
      const made = await volume.writeFile('/a.txt', 'text ü', { mode: 0o640 })
      assert.deepEqual([made.name, made.type, made.size, made.mode], ['a.txt', 'file', 7, 0o640])
      assert.equal(await volume.readFile('/a.txt'), 'text ü')
      await assert.rejects(volume.writeFile('/a.txt', 'again'), /409/)
      await volume.writeFile('/a.txt', new Blob(['x'.repeat(100_000)]), { force: true })
      assert.equal((await volume.readFile('/a.txt', { format: 'bytes' })).length, 100_000)
      await volume.makeDir('/d/e', { force: true })
      assert.deepEqual((await volume.list('/', { depth: 2 })).map((entry) => entry.path), ['/a.txt', '/d', '/d/e'])
      assert.equal((await volume.updateMetadata('/d', { mode: 0o700 })).mode, 0o700)
      assert.ok((await volume.getInfo('/d')).mtime > new Date('2020-01-01'))
      await volume.remove('/d')
      assert.equal(await volume.exists('/d'), false)
      await assert.rejects(volume.readFile('/none'), /Path .none not found/)
      assert.equal((await mounted.commands.run('wc -c < /v/a.txt')).stdout.trim(), '100000')
      assert.equal((await Volume.connect(volume.volumeId)).name, volume.name)
      assert.ok((await Volume.list()).some((one) => one.volumeId === volume.volumeId))
      await assert.rejects(volume.readFile('/a.txt', { token: 'ev_x' }), { name: 'AuthenticationError' })
      await assert.rejects(Volume.destroy(volume.volumeId), /409/)
    } finally {
      await mounted.kill()
      assert.equal(await Volume.destroy(volume.volumeId), true)
    }
    assert.equal(await Volume.destroy(volume.volumeId), false)
    await assert.rejects(Volume.getInfo(volume.volumeId), /not found/)
  })
}

if (Secret) {
  test('secrets', async () => {
    const name = `js-${Date.now()}`
    const made = await Secret.create(name, 'sesame-open', { metadata: { team: 'a' } })
    assert.deepEqual([made.name, made.version, made.metadata], [name, 1, { team: 'a' }])
    await assert.rejects(Secret.create(name, 'sesame'), /409/)
    assert.equal((await Secret.update(name, 'sesame-two')).version, 2)
    assert.equal((await Secret.getInfo(made.secretId)).name, name)
    assert.ok((await Secret.list().nextItems()).some((one) => one.name === name))
    assert.equal(await Secret.destroy(name), true)
    assert.equal(await Secret.exists(name), false)
  })
}
