atoll create --name my-box
atoll exec my-box -- true
atoll exec my-box -- true
