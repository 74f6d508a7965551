// The JavaScript SDK against the server in DAYTONA_API_URL.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Daytona, DaytonaNotFoundError, Image } from '@daytonaio/sdk'

const daytona = new Daytona()
let box

before(async () => {
  box = await daytona.create({ language: 'javascript' })
})
after(async () => {
  await box.delete()
  await daytona[Symbol.asyncDispose]?.()
})

test('a command', async () => {
  const result = await box.process.executeCommand('echo "$A"; exit 3', '/tmp', { A: 'b c' })
  assert.equal(result.result, 'b c\n')
  assert.equal(result.exitCode, 3)
})

test('a program in the language of the sandbox', async () => {
  const result = await box.process.codeRun('console.log([1, 2].map((n) => n * 21))')
  assert.equal(result.result, '[ 21, 42 ]\n')
})

test('sessions and logs as they come', async () => {
  await box.process.createSession('js')
  await box.process.executeSessionCommand('js', { command: 'cd /usr; A=1' })
  const done = await box.process.executeSessionCommand('js', { command: 'pwd; echo $A >&2' })
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['/usr\n', '1\n', 0])
  const started = await box.process.executeSessionCommand('js', {
    command: 'for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.1; done',
    runAsync: true,
  })
  const out = []
  const err = []
  await box.process.getSessionCommandLogs('js', started.cmdId, (text) => out.push(text), (text) => err.push(text))
  assert.equal(out.join(''), '1\n2\n3\n')
  assert.equal(err.join(''), 'e1\ne2\ne3\n')
  await box.process.deleteSession('js')
  await assert.rejects(box.process.getSession('js'), DaytonaNotFoundError)
})

test('files', async () => {
  const content = Buffer.alloc(3 << 20, 'ü')
  await box.fs.uploadFile(content, '/tmp/js/file ü')
  assert.ok(content.equals(await box.fs.downloadFile('/tmp/js/file ü')))
  assert.deepEqual((await box.fs.listFiles('/tmp/js')).map((file) => file.name), ['file ü'])
  await assert.rejects(box.fs.downloadFile('/tmp/js/none'))
  await box.fs.deleteFile('/tmp/js', true)
})

test('a terminal', async () => {
  let shown = ''
  const terminal = await box.process.createPty({
    id: 'js-pty',
    cols: 100,
    rows: 30,
    envs: { A: 'b' },
    onData: (data) => (shown += new TextDecoder().decode(data)),
  })
  await terminal.waitForConnection()
  await terminal.sendInput('stty size; echo [$A]; exit 7\n')
  const ended = await terminal.wait()
  assert.equal(ended.exitCode, 7)
  assert.match(shown, /30 100/)
  assert.match(shown, /\[b\]/)
})

test('the interpreter', async () => {
  let out = ''
  await box.codeInterpreter.runCode('x = 1')
  const result = await box.codeInterpreter.runCode('print(x + 1); raise KeyError("no")', {
    onStdout: (message) => (out += message.output),
  })
  assert.equal(out, '2\n')
  assert.equal(result.error.name, 'KeyError')
})

test('an image', async () => {
  const image = Image.base('host').runCommands('mkdir -p /opt && echo js >/opt/js')
  const made = await daytona.create({ image }, { timeout: 0 })
  assert.equal((await made.process.executeCommand('cat /opt/js')).result, 'js\n')
  await made.stop()
  assert.equal(made.state, 'stopped')
  await made.start()
  assert.equal(made.state, 'started')
  await made.delete()
  await assert.rejects(daytona.get(made.id), DaytonaNotFoundError)
})

test('files of the client in an image', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'atoll-'))
  try {
    writeFileSync(join(dir, 'hello'), 'hello\n')
    mkdirSync(join(dir, 'tree', 'below'), { recursive: true })
    // Sent in several parts.
    const large = randomBytes(13 << 20)
    writeFileSync(join(dir, 'tree', 'below', 'large'), large)
    const image = Image.base('host')
      .addLocalFile(join(dir, 'hello'), '/opt/js/')
      .addLocalDir(join(dir, 'tree'), '/opt/js/tree')
    const made = await daytona.create({ image }, { timeout: 0 })
    assert.equal((await made.process.executeCommand('cat /opt/js/hello')).result, 'hello\n')
    const digest = createHash('sha256').update(large).digest('hex')
    const told = (await made.process.executeCommand('sha256sum /opt/js/tree/below/large')).result
    assert.equal(told.split(' ')[0], digest)
    await made.delete()
  } finally {
    rmSync(dir, { recursive: true })
  }
})

test('labels and listing', async () => {
  await box.setLabels({ team: 'js' })
  const found = []
  for await (const one of daytona.list({ labels: { team: 'js' } })) found.push(one.id)
  assert.deepEqual(found, [box.id])
})
