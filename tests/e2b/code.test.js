// E2B's code interpreter SDK for JavaScript, against the template that `atoll template build-defaults` makes.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'
import { TimeoutError } from 'e2b'

let box
before(async () => {
  box = await Sandbox.create({ timeoutMs: 900_000 })
})
after(() => box.kill())

test('cells remember, and contexts are apart', async () => {
  await box.runCode('x = 20')
  assert.equal((await box.runCode('x + 1')).text, '21')
  const context = await box.createCodeContext({ cwd: '/tmp' })
  assert.equal((await box.runCode('x', { context })).error.name, 'NameError')
  assert.equal((await box.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  assert.ok((await box.listCodeContexts()).some((one) => one.id === context.id))
  await box.restartCodeContext(context.id)
  await box.removeCodeContext(context.id)
  assert.ok(!(await box.listCodeContexts()).some((one) => one.id === context.id))
})

test('output streams, results have their kinds', async () => {
  const [stdout, stderr, results, errors] = [[], [], [], []]
  const hooks = {
    onStdout: (message) => stdout.push(message.line),
    onStderr: (message) => stderr.push(message.line),
    onResult: (result) => results.push(result),
    onError: (error) => errors.push(error),
  }
  const code = `
import sys, pandas as pd, matplotlib.pyplot as plt
from IPython.display import HTML, Markdown, Latex, display
print('one 🐚'); print('bad', file=sys.stderr)
display(HTML('<b>h</b>')); display(Markdown('**m**')); display(Latex('$x$'))
plt.bar(['a', 'b'], [1, 2]); plt.title('t'); plt.show()
pd.DataFrame({'a': [1, 2]})`
  await box.runCode(code, hooks)
  assert.equal(stdout.join(''), 'one 🐚\n')
  assert.equal(stderr.join(''), 'bad\n')
  const [html, markdown, latex, figure, table] = results
  assert.deepEqual([html.html, markdown.markdown, latex.latex], ['<b>h</b>', '**m**', '$x$'])
  assert.ok(figure.png && figure.chart.type === 'bar' && figure.chart.title === 't')
  assert.deepEqual(table.data, { a: [1, 2] })
  assert.ok(table.isMainResult && !html.isMainResult)
  await box.runCode('1/0', hooks)
  assert.equal(errors[0].name, 'ZeroDivisionError')
})

test('variables are of their cell, in each language', async () => {
  const languages = { python: "import os; os.environ.get('MINE')", javascript: 'process.env.MINE', typescript: 'process.env.MINE' }
  for (const [language, code] of Object.entries(languages)) {
    assert.equal((await box.runCode(code, { language, envs: { MINE: '1' } })).text, '1', language)
    assert.notEqual((await box.runCode(code, { language })).text, '1', language)
  }
  const shell = await box.runCode('echo $MINE', { language: 'bash', envs: { MINE: '1' } })
  assert.equal(shell.logs.stdout.join(''), '1\n')
})

test('a client that goes away interrupts its cell, and the state stays', async () => {
  await box.runCode('kept = 5')
  await assert.rejects(box.runCode('import time\nwhile True: time.sleep(0.05)', { timeoutMs: 2000 }), TimeoutError)
  assert.equal((await box.runCode('kept + 1', { timeoutMs: 60_000 })).text, '6')
})

test('the interpreter comes back when it is killed', async () => {
  const own = await Sandbox.create({ timeoutMs: 600_000 })
  try {
    await own.commands.run("pkill -9 -f '^[^ ]*python -m code_interpreter'")
    const end = Date.now() + 120_000
    let text
    while (text !== '2' && Date.now() < end) {
      text = await own.runCode('1 + 1').then((execution) => execution.text, () => undefined)
    }
    assert.equal(text, '2')
  } finally {
    await own.kill()
  }
})
