atoll create --name my-box
atoll exec my-box -- sh -c 'echo note > /root/notes'
